"""The choice of the next token in integers: weights by distance, a share of them, and a draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.sampling import OCTAVE, ONE, WEIGHT_BITS, Sampling, powers

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 of Salmon et al. (2011): four random words from four of a counter and two of a key.

    >>> [f"{word:08x}" for word in philox([0, 0, 0, 0], [0, 0])]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    a, b, c, d = counter
    for i in range(10):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        k, m = ((word + i * step) & _WORD for word, step in zip(key, _KEY_STEPS, strict=True))
        a, b, c, d = second >> 32 ^ b ^ k, second & _WORD, first >> 32 ^ d ^ m, first & _WORD
    return a, b, c, d


def random_bits(seed: int, position: int) -> int:
    """64 bits for the token at a position of the text that a seed names."""
    low, high, *_ = philox([position & _WORD, position >> 32, 0, 0], [seed & _WORD, seed >> 32])
    return high << 32 | low


def sample(
    scores: NDArray[np.int32], sampling: Sampling, score_scale: float, seed: int, position: int
) -> int:
    """The token at `position` of the text that `seed` names, from the scores [tokens] before it."""
    if not sampling.temperature:
        return int(scores.argmax())  # the first of equal ones
    ids, steps = _within_reach(scores, *sampling.factor(score_scale))
    weights = powers()[steps % OCTAVE].astype(np.uint64) >> (steps // OCTAVE)
    order = np.argsort(steps, kind="stable")[: sampling.top_k]
    sums = np.cumsum(weights[order])
    enough = sums * np.uint64(ONE) >= sums[-1] * np.uint64(sampling.share)
    kept = np.sort(order[: int(enough.argmax()) + 1])
    sums = np.cumsum(weights[kept])
    drawn = random_bits(seed, position) * int(sums[-1]) >> 64
    return int(ids[kept[np.searchsorted(sums, np.uint64(drawn), side="right")]])


def _within_reach(scores: NDArray[np.int32], R: int, r: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Ids of the tokens that have a weight, in rising order, and their distances in steps."""
    distance = (int(scores.max()) - scores.astype(np.int64)).astype(np.uint64)
    steps = (distance * np.uint64(R) + np.uint64(1 << (r - 1))) >> np.uint64(r)
    ids = np.flatnonzero(steps < WEIGHT_BITS * OCTAVE)
    return ids, steps[ids]
