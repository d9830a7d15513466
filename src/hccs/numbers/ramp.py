"""`RampParams`: GELU or SiLU on int16 values, as a ramp less a small residue on 64 linear pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import ParameterError, ShapeError
from hccs.numbers.multipliers import INT16_LIMIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECES = 64
MAX_BITS = 9
"""64 pieces of 2^9 steps reach all of int16."""


@dataclass(frozen=True, eq=False)
class RampParams:
    """f(x) = max(x, 0) - r(|x|): `knot` is r where a piece of 2^bits steps starts, `slope` its rise over it.

    Beyond the last piece r keeps its last value, which is 0 for the functions that `from_function` takes.
    """

    knot: NDArray[np.int16]
    slope: NDArray[np.int16]
    bits: int

    def __post_init__(self) -> None:
        for name, part in (("knot", self.knot), ("slope", self.slope)):
            if part.shape != (PIECES,) or part.dtype != np.int16:
                raise ShapeError(f"{name} int16 of shape (64,)", f"{part.dtype} of shape {part.shape}", "")
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= MAX_BITS:
            raise ParameterError(f"bits from 0 to {MAX_BITS}", repr(self.bits), "A piece has 1 to 512 steps.")
        ends = np.stack([self.knot.astype(np.int64), self.knot.astype(np.int64) + self.slope])
        if ends.min() < -(2**14) or ends.max() > 2**14:
            raise ParameterError(
                "a residue within 2^14 steps", f"{ends.min()} to {ends.max()}", "Use a coarser step."
            )
        largest = np.minimum((np.arange(PIECES) + 1 << self.bits) - 1, INT16_LIMIT)  # x of each piece
        largest[-1] = INT16_LIMIT
        if (largest - ends.min(0) > INT16_LIMIT).any():
            raise ParameterError(
                "f(x) of at most 32767", f"{(largest - ends.min(0)).max()}", "Use a coarser step."
            )

    @classmethod
    def from_function(cls, function: Callable[[Any], Any], step: float) -> RampParams:
        """The ramp of a real function, x and f(x) in this step; any but GELU's kind are refused."""
        reach = 32767 * step
        x = np.linspace(0.0, reach, 4097)
        residue = np.maximum(x, 0) - np.asarray(function(x), np.float64)
        mirrored = -np.asarray(function(-x), np.float64)
        if not np.allclose(residue, mirrored, rtol=0, atol=max(1e-6, step / 4)):
            raise ParameterError(
                "a function f with f(x) - max(x, 0) the same for x and -x, as GELU and SiLU",
                "another function",
                "Use a table of int8 values for it.",
            )
        needed = x[np.flatnonzero(abs(residue) > step / 2)[-1]] if (abs(residue) > step / 2).any() else 0.0
        bits = next((b for b in range(MAX_BITS + 1) if PIECES * 2**b * step > needed), None)
        if bits is None:
            raise ParameterError("a residue that ends within int16", f"one that reaches {needed:.3g}", "")
        knots = np.arange(PIECES + 1) * 2.0**bits * step
        values = np.rint((np.maximum(knots, 0) - np.asarray(function(knots), np.float64)) / step)
        values[-1] = 0
        return cls(values[:-1].astype(np.int16), np.diff(values).astype(np.int16), bits)
