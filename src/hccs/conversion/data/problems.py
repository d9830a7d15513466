"""The problems that models solve: a label or a value of a text or a pair, a label per word, of an image."""

from __future__ import annotations

from hccs.errors import ParameterError

CLASSIFICATION, REGRESSION, TOKENS, IMAGES = PROBLEMS = ("classification", "regression", "tokens", "images")

IGNORED = -100
"""The label of tokens that have none: the first token of a word carries the word's."""


def require_problem(problem: str) -> None:
    """Refuse other names."""
    if problem not in PROBLEMS:
        raise ParameterError(
            f"a problem among {', '.join(PROBLEMS)}", repr(problem), "Choose another --problem."
        )
