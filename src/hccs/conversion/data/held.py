"""A part of the training examples that is held back: what is chosen is chosen on it, and never on dev."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from hccs.conversion.data.tasks import Examples
from hccs.errors import DataError

HELD_BACK = 4000
"""The most that is held back: enough to tell two models apart that differ in one answer of twenty by more
than 0.4 points, and a small part of what large tasks train on."""

SHARE = 10
"""Of few examples one in so many is held back."""

MOST_LOOKED_AT = 200
"""Texts that are looked through for one that contains another; commonplace words stand in all of them."""


def hold_back(examples: Examples, most: int = HELD_BACK, seed: int = 0) -> tuple[Examples, Examples]:
    """(the rest, a tenth of the examples, `most` at most), drawn by a fixed seed.

    Examples whose text is part of another's, as the phrases in SST-2 are of its sentences, or the same, as
    the premises in MNLI, stay together: a model that has learnt a sentence is not asked about its phrases.
    """
    if len(examples) < 2:
        raise DataError(
            "at least two training examples: one is held back", str(len(examples)), "Give more data."
        )
    wanted = max(1, min(most, len(examples) // SHARE))
    order = _related(examples)
    random.Random(seed).shuffle(order)
    held: list[int] = []
    for group in order:
        if len(held) + len(group) <= wanted:
            held += group
    if not held:  # every text is part of one and the same
        held = random.Random(seed).sample(range(len(examples)), wanted)
    chosen = set(held)
    rest = [i for i in range(len(examples)) if i not in chosen]
    return examples.at(rest), examples.at(sorted(held))


def whole_texts(examples: Examples) -> Examples:
    """The examples whose text is part of no other's: of SST-2 its sentences, without their phrases."""
    return examples.at(sorted(group[0] for group in _related(examples)))


def _related(examples: Examples) -> list[list[int]]:
    """The places of examples, together where the longer text of one contains that of the other."""
    by_text: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, columns in enumerate(examples.texts):
        by_text[tuple(max(columns, key=len).casefold().split())].append(place)
    groups: list[list[int]] = []
    spelled: list[str] = []
    holding: dict[str, list[int]] = defaultdict(list)
    for words in sorted(by_text, key=lambda words: (-len(words), words)):
        text = f" {' '.join(words)} "
        whole = _containing(text, words, spelled, holding)
        if whole is None:
            for word in set(words):
                holding[word].append(len(groups))
            spelled.append(text)
            groups.append(list(by_text[words]))
        else:
            groups[whole] += by_text[words]
    return groups


def _containing(
    text: str, words: Sequence[str], spelled: Sequence[str], holding: dict[str, list[int]]
) -> int | None:
    """The group whose longest text contains this one; its rarest word tells where to look."""
    if not words:
        return None
    candidates = min((holding.get(word, []) for word in words), key=len)
    return next((group for group in candidates[:MOST_LOOKED_AT] if text in spelled[group]), None)
