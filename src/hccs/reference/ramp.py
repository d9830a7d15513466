"""Smooth ramps on int16, GELU and SiLU: f(x) = max(x, 0) - r(|x|), with r linear on 64 pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.numbers.ramp import RampParams


def ramp(x: NDArray[np.int16], params: RampParams) -> NDArray[np.int16]:
    """max(x, 0) - (knot + floor((slope * rest + 2^14) / 2^15)) of the piece that |x| lies in."""
    wide = x.astype(np.int64)
    distance = np.minimum(abs(wide), (64 << params.bits) - 1)
    piece = distance >> params.bits
    rest = (distance - (piece << params.bits)) << (15 - params.bits)
    knot, slope = params.knot.astype(np.int64)[piece], params.slope.astype(np.int64)[piece]
    made = np.maximum(wide, 0) - (knot + ((slope * rest + (1 << 14)) >> 15))
    return made.astype(np.int16)  # type: ignore[no-any-return]
