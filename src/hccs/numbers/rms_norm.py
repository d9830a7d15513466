"""The integer constants of RMSNorm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ParameterError, ShapeError
from hccs.numbers.layers import GAIN_LIMIT, MAX_GAIN_BITS

RMS_BITS = 8
"""Values get so many fraction bits before they are squared, which epsilon then has twice."""

MAX_RMS_CHANNELS = 4096
"""4,096 squares of 24 bits add up below 2^61, and |xhat| <= sqrt(h) <= 2^6."""

LEAST_GAIN_BITS = 7
"""Rounding gains then changes no output by more than a quarter of a step: |xhat| / 2^(k + 1) <= 2^-2."""


@dataclass(frozen=True, eq=False)
class RmsParams:
    """y = rhe(xhat * G / 2^(20 + k)): gain G per channel, `gain_bits` k, and epsilon."""

    gain: NDArray[np.int32]
    gain_bits: int
    epsilon: int

    def __post_init__(self) -> None:
        if self.gain.dtype != np.int32 or self.gain.ndim != 1:
            raise ShapeError(
                "gains int32, one per channel", f"{self.gain.dtype} {self.gain.shape}", "See from_float."
            )
        if not 1 <= len(self.gain) <= MAX_RMS_CHANNELS:
            raise ShapeError(
                f"1 to {MAX_RMS_CHANNELS} channels",
                str(len(self.gain)),
                "Wider sums of squares leave 64 bits.",
            )
        loud = (abs(self.gain.astype(np.int64)) >= GAIN_LIMIT).any()
        if loud or not LEAST_GAIN_BITS <= self.gain_bits <= MAX_GAIN_BITS:
            raise ParameterError(
                f"|gain| < 2^23 and {LEAST_GAIN_BITS} to {MAX_GAIN_BITS} bits",
                f"{abs(self.gain.astype(np.int64)).max()} and {self.gain_bits} bits",
                "See from_float.",
            )
        if not 1 <= self.epsilon < 2**62:
            raise ParameterError("1 <= epsilon < 2^62", str(self.epsilon), "Rows of zeros need one.")

    @property
    def channels(self) -> int:
        return len(self.gain)

    @classmethod
    def from_float(cls, gamma: Any, eps: float, *, in_scale: float, out_scale: float) -> RmsParams:
        """The constants of gamma and eps between the scale of v and that of the int16 output."""
        gains = np.asarray(gamma, np.float64) / out_scale
        if not np.isfinite(gains).all():
            raise DataError("finite gamma", "NaN or infinity", "The model is damaged, or training diverged.")
        largest = max(float(abs(gains).max(initial=0)), 1e-30)
        bits = min(MAX_GAIN_BITS, math.floor(math.log2((GAIN_LIMIT - 1) / largest)))
        if bits < LEAST_GAIN_BITS:
            raise ParameterError(
                "gamma / out_scale below 2^16", f"{largest:.4g}", "The output's scale is too fine."
            )
        epsilon = max(1, round(eps * gains.size * 4**RMS_BITS / in_scale**2))
        return cls(np.rint(gains * 2.0**bits).astype(np.int32), bits, min(epsilon, 2**62 - 1))
