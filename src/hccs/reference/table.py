"""Activations in integers: any function of one int8 value as a table, and smooth ramps on int16.

A ramp, GELU or SiLU, is f(x) = max(x, 0) - r(|x|), with r linear on 64 pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError
from hccs.numbers.layers import RampParams


def table(function: Callable[[Any], Any], in_scale: float, out_scale: float) -> NDArray[np.int8]:
    """clamp(rhe(f(x * s_in) / s_out), -127, 127) for x from -128 to 127, in that order."""
    values = np.asarray(function(np.arange(-128, 128) * in_scale), np.float64)
    if not np.isfinite(values).all():
        raise DataError(
            "a function that is finite over the input's range", "NaN or infinity", "Check the activation."
        )
    return np.clip(np.rint(values / out_scale), -127, 127).astype(np.int8)


def look_up(x: NDArray[np.int8], entries: NDArray[np.int8]) -> NDArray[np.int8]:
    """entries[x + 128]."""
    return entries[x.astype(np.int64) + 128]


def ramp(x: NDArray[np.int16], params: RampParams) -> NDArray[np.int16]:
    """max(x, 0) - (knot + floor((slope * rest + 2^14) / 2^15)) of the piece that |x| lies in."""
    wide = x.astype(np.int64)
    distance = np.minimum(abs(wide), (64 << params.bits) - 1)
    piece = distance >> params.bits
    rest = (distance - (piece << params.bits)) << (15 - params.bits)
    knot, slope = params.knot.astype(np.int64)[piece], params.slope.astype(np.int64)[piece]
    made = np.maximum(wide, 0) - (knot + ((slope * rest + (1 << 14)) >> 15))
    return made.astype(np.int16)  # type: ignore[no-any-return]
