"""`NormParams`: the constants of an integer LayerNorm that stays within one step of the real one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

XHAT_BITS = 20
"""Fraction bits of the normalised value; |xhat| <= sqrt(h) <= 2^5, so that it fits int32."""

GAIN_LIMIT = 2**23
"""Gains stay below, so that xhat * G fits 2^48 and leaves room for the bias."""

MAX_GAIN_BITS = 16
MAX_CHANNELS = 1024
LARGEST_INPUT = 2**16
"""|v|: a sum of two int16. Then Q < h^3 * 2^32 <= 2^62."""


@dataclass(frozen=True, eq=False)
class NormParams:
    """y = rhe((xhat * G + B * 2^20) / 2^(20 + k)): gain G, bias B per channel, `gain_bits` k, and epsilon."""

    gain: NDArray[np.int32]
    bias: NDArray[np.int32]
    gain_bits: int
    epsilon: int

    def __post_init__(self) -> None:
        (channels,) = self.gain.shape
        if self.bias.shape != (channels,) or self.gain.dtype != np.int32 or self.bias.dtype != np.int32:
            raise ShapeError(
                "gain and bias int32, one per channel", f"bias {self.bias.shape}", "See from_float."
            )
        if not 2 <= channels <= MAX_CHANNELS:
            raise ShapeError(
                f"2 to {MAX_CHANNELS} channels", str(channels), "Wider sums of squares leave 64 bits."
            )
        if (abs(self.gain.astype(np.int64)) >= GAIN_LIMIT).any() or not 0 <= self.gain_bits <= MAX_GAIN_BITS:
            raise ParameterError(
                f"|gain| < 2^23 and 0 to {MAX_GAIN_BITS} bits", f"{self.gain_bits} bits", "See from_float."
            )
        if not 1 <= self.epsilon < 2**62:
            raise ParameterError(
                "1 <= epsilon < 2^62", str(self.epsilon), "Constant rows need a positive one."
            )

    @property
    def channels(self) -> int:
        return len(self.gain)

    @classmethod
    def from_float(
        cls, gamma: Any, beta: Any, eps: float, *, in_scale: float, out_scale: float
    ) -> NormParams:
        """The constants of gamma, beta and eps between the scale of v and that of the int16 output."""
        gains, biases = (np.asarray(part, np.float64) / out_scale for part in (gamma, beta))
        if not (np.isfinite(gains).all() and np.isfinite(biases).all()):
            raise DataError(
                "finite gamma and beta", "NaN or infinity", "The model is damaged, or training diverged."
            )
        largest = max(float(abs(gains).max(initial=0)), float(abs(biases).max(initial=0)) / 2**7, 1e-30)
        bits = min(MAX_GAIN_BITS, math.floor(math.log2((GAIN_LIMIT - 1) / largest)))
        if bits < 0:
            raise ParameterError(
                "gamma / out_scale below 2^23", f"{largest:.4g}", "The output's scale is too fine."
            )
        h = gains.size
        epsilon = max(1, round(eps * h**3 / in_scale**2))
        gain, bias = (np.rint(part * 2.0**bits).astype(np.int32) for part in (gains, biases))
        return cls(gain, bias, bits, min(epsilon, 2**62 - 1))
