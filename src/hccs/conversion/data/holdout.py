"""A part of the training examples that is not trained on: models are chosen on it, and never on dev."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from hccs.conversion.data.tasks import Examples
from hccs.errors import DataError

HOLDOUT_LIMIT = 4000
"""The most examples that are held out: enough to tell two models apart that differ in one answer of twenty by
more than 0.4 points, and a small part of what large tasks train on."""

SHARE = 10
"""One example in so many is held out."""

CANDIDATES = 200
"""Texts that are searched for one that contains another; commonplace words stand in all of them."""


def hold_out(examples: Examples, most: int = HOLDOUT_LIMIT, seed: int = 0) -> tuple[Examples, Examples]:
    """(the rest, a tenth of the examples, `most` at most), drawn by a fixed seed.

    Examples whose text is part of another's, as the phrases in SST-2 are of its sentences, or the same, as
    the premises in MNLI, stay together: a model that has learnt a sentence is not asked about its phrases.
    """
    if len(examples) < 2:
        raise DataError(
            "at least two training examples: one is held out", str(len(examples)), "Give more data."
        )
    wanted = max(1, min(most, len(examples) // SHARE))
    groups = _related(examples)
    random.Random(seed).shuffle(groups)
    chosen: list[int] = []
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen += group
    if not chosen:  # every text is part of one and the same
        chosen = random.Random(seed).sample(range(len(examples)), wanted)
    rest = sorted({*range(len(examples))} - {*chosen})
    return examples.at(rest), examples.at(sorted(chosen))


def _related(examples: Examples) -> list[list[int]]:
    """The places of examples, together where the longer text of one contains that of the other."""
    by_text: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, columns in enumerate(examples.texts):
        by_text[tuple(max(columns, key=len).casefold().split())].append(place)
    groups: list[list[int]] = []
    spelled: list[str] = []
    with_word: dict[str, list[int]] = defaultdict(list)
    for words in sorted(by_text, key=lambda words: (-len(words), words)):
        text = f" {' '.join(words)} "
        longer = _containing(text, words, spelled, with_word)
        if longer is None:
            for word in set(words):
                with_word[word].append(len(groups))
            spelled.append(text)
            groups.append(list(by_text[words]))
        else:
            groups[longer] += by_text[words]
    return groups


def _containing(
    text: str, words: Sequence[str], spelled: Sequence[str], with_word: dict[str, list[int]]
) -> int | None:
    """The group whose longest text contains this one; the candidates are those with its rarest word."""
    if not words:
        return None
    candidates = min((with_word.get(word, []) for word in words), key=len)
    return next((group for group in candidates[:CANDIDATES] if text in spelled[group]), None)
