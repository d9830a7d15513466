"""The integer constants of rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ParameterError, ShapeError
from hccs.numbers.layers import INT16_LIMIT, MULTIPLIER_LIMIT

ROTATE_SHIFT = 38
"""rhe(a * M / 2^38), |a| < 2^31: M has 15 to 23 bits where 127 to 32767 steps of int16 fill int8."""


@dataclass(frozen=True, eq=False)
class RotateParams:
    """Cosines and sines int16 [positions, pairs], 32767 standing for 1, and a multiplier of every head.

    A head has at least 2 * pairs channels, of which the pairs (i, i + pairs) turn. `multiplier` has those of
    the `heads` of q, then those of k, then those of v.
    """

    cosine: NDArray[np.int16]
    sine: NDArray[np.int16]
    multiplier: NDArray[np.int32]
    heads: int

    def __post_init__(self) -> None:
        for name, part in (("cosines", self.cosine), ("sines", self.sine)):
            fits = part.dtype == np.int16 and part.ndim == 2 and part.size and part.shape == self.cosine.shape
            if not fits or (part == -32768).any():
                raise ShapeError(
                    f"{name} int16 [positions, pairs] from -32767 to 32767",
                    f"{part.dtype} of shape {part.shape}",
                    "See from_float.",
                )
        if type(self.heads) is not int or self.heads < 1:
            raise ParameterError("heads of q, 1 or more", repr(self.heads), "See from_float.")
        kind, left = self.multiplier.dtype, self.multiplier.size - self.heads
        if kind != np.int32 or self.multiplier.ndim != 1 or left < 2 or left % 2 or self.heads % (left // 2):
            raise ShapeError(
                f"multipliers int32 of {self.heads} heads of q, and of heads of k and v that divide them",
                f"{kind} of shape {self.multiplier.shape}",
                "See from_float.",
            )
        if not ((self.multiplier >= 1) & (self.multiplier < MULTIPLIER_LIMIT)).all():
            raise ParameterError(
                "multipliers from 1 to 2^24 - 1",
                f"{self.multiplier.min()} to {self.multiplier.max()}",
                "A scale is wrong by orders of magnitude.",
            )

    @property
    def kv_heads(self) -> int:
        return (self.multiplier.size - self.heads) // 2

    @property
    def all_heads(self) -> int:
        """Heads of q, k and v together."""
        return int(self.multiplier.size)

    @property
    def positions(self) -> int:
        return len(self.cosine)

    @property
    def pairs(self) -> int:
        return int(self.cosine.shape[1])

    @classmethod
    def from_float(cls, cosine: Any, sine: Any, *, in_scale: Any, out_scale: Any, heads: int) -> RotateParams:
        """The constants of tables [positions, pairs] between scales; int16 tables are taken as they are.

        `in_scale` of the int16 input and `out_scale` of the int8 output: one value, or one for every head of
        q, k and v; `out_scale` has the number of heads.
        """
        tables = [rotary_table(part) for part in (cosine, sine)]
        factor = np.asarray(in_scale, np.float64) / (INT16_LIMIT * np.asarray(out_scale, np.float64))
        multiplier = np.rint(factor * 2.0**ROTATE_SHIFT)
        if not ((multiplier >= 1) & (multiplier < MULTIPLIER_LIMIT)).all():
            raise ParameterError(
                "int8 steps of half an int16 step to 2^23 of them",
                f"{(1 / factor / INT16_LIMIT).min():.4g} to {(1 / factor / INT16_LIMIT).max():.4g}",
                "A scale is wrong by orders of magnitude.",
            )
        return cls(tables[0], tables[1], multiplier.astype(np.int32), heads)


def rotary_table(real: Any) -> NDArray[np.int16]:
    """Cosines or sines, 32767 standing for 1; int16 ones are returned as they are."""
    if isinstance(real, np.ndarray) and real.dtype == np.int16:
        return real
    table = np.asarray(real, np.float64)
    if not (np.isfinite(table).all() and (abs(table) <= 1).all()):
        raise DataError("cosines and sines within 1", "others", "Attention factors go into a scale.")
    return np.rint(table * INT16_LIMIT).astype(np.int16)
