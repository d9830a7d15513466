"""From the tokens of a text to one vector: pooling, and unit vectors in Q15."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs.reference.linear import shift_half_even

POOLINGS = ("mean", "first", "last", "max")
UNIT_BITS = 25
"""Values have at most so many bits before they are squared: 4,096 squares then add up below 2^63."""


def pool(h: NDArray[np.int16], pooling: str, *, divided: bool = False) -> NDArray[Any]:
    """One row of a text's tokens [tokens, channels]: int32. A mean is the sum: unit vectors have no scale.

    With `divided` the result is int16, and a mean is floor((2 sum + n) / (2 n)).
    """
    if pooling not in POOLINGS:
        raise ParameterError(f"pooling among {', '.join(POOLINGS)}", repr(pooling), "See docs/spec.md.")
    wide = h.astype(np.int64)
    if pooling == "mean":
        pooled: NDArray[np.int64] = wide.sum(0)
    else:
        pooled = wide.max(0) if pooling == "max" else wide[0 if pooling == "first" else -1]
    if not divided:
        return pooled.astype(np.int32)
    n = len(h) if pooling == "mean" else 1
    return ((2 * pooled + n) // (2 * n)).astype(np.int16)


def unit(e: NDArray[np.int32]) -> NDArray[np.int16]:
    """The unit vector in Q15: clamp(floor((2 e 32767 + N) / (2 N)), -32767, 32767) with N = isqrt(sum e^2).

    Where |e| needs more than 25 bits it is shifted down to them first, rounded half to even.

    >>> unit(np.array([3, -4], np.int32)).tolist()
    [19660, -26214]
    """
    wide = e.astype(np.int64)
    bits = max(0, int(abs(wide).max(initial=0)).bit_length() - UNIT_BITS)
    wide = shift_half_even(wide, bits)
    norm = math.isqrt(int((wide**2).sum()))
    if norm == 0:
        return np.zeros(e.shape, np.int16)
    return np.clip((2 * 32767 * wide + norm) // (2 * norm), -32767, 32767).astype(np.int16)
