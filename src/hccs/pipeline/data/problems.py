"""The problems that models solve: one label of a text or pair of texts, one value of it, a label per word."""

from __future__ import annotations

from hccs.errors import ParameterError

CLASSIFICATION, REGRESSION, TOKENS = PROBLEMS = ("classification", "regression", "tokens")

IGNORED = -100
"""The label of tokens that have none: the first token of a word carries the word's."""


def require_problem(problem: str) -> None:
    """Refuse other names."""
    if problem not in PROBLEMS:
        raise ParameterError(
            f"a problem among {', '.join(PROBLEMS)}", repr(problem), "Choose another --problem."
        )
