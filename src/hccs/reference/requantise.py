"""Moving between integer scales: multiply, round half to even, saturate. One rule for all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.multipliers import MULTIPLIER_SHIFT

if TYPE_CHECKING:
    from numpy.typing import NDArray


def shift_half_even(a: NDArray[np.int64], bits: Any) -> NDArray[np.int64]:
    """rhe(a / 2^bits): the nearest integer, ties to the even one. `bits` >= 0, an integer or an array."""
    bits = np.asarray(bits, np.int64)
    floor = a >> bits
    rest = a - (floor << bits)  #                                              0 <= rest < 2^bits
    half = np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 1)  #    no rest reaches 1 at bits = 0
    up = (rest > half) | ((rest == half) & (floor & 1 == 1))
    nearest: NDArray[np.int64] = floor + up
    return nearest


def requantise(acc: NDArray[Any], multiplier: Any, limit: int) -> NDArray[np.int64]:
    """clamp(rhe(acc * M / 2^16), -limit, limit) of int32 accumulators; M per channel, the last dimension."""
    product = acc.astype(np.int64) * np.asarray(multiplier, np.int64)
    return np.clip(shift_half_even(product, MULTIPLIER_SHIFT), -limit, limit)


def narrow(x: NDArray[np.int16], bits: int) -> NDArray[np.int8]:
    """An int16 stream as the int8 input of a linear layer: clamp(rhe(x / 2^bits), -127, 127)."""
    return np.clip(shift_half_even(x.astype(np.int64), bits), -127, 127).astype(np.int8)


def add(x: NDArray[np.int16], y: NDArray[np.int16], limit: int | None = None) -> NDArray[Any]:
    """The residual x + y: int32, or clamped to +-limit as int16."""
    total = x.astype(np.int32) + y
    return total if limit is None else np.clip(total, -limit, limit).astype(np.int16)
