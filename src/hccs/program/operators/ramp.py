"""`Ramp`: GELU or SiLU on int16 values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccs.numbers.multipliers import INT16_LIMIT
from hccs.numbers.ramp import RampParams
from hccs.program.operators.operator import Array, Batch, Constants, Operator, Value
from hccs.reference.ramp import ramp


@dataclass(frozen=True, eq=False)
class Ramp(Operator):
    """max(x, 0) - r(|x|), with r linear on 64 pieces; input and output have one step."""

    inputs: tuple[str]
    output: str
    params: RampParams

    overwrites = True

    def written(self, given: Sequence[Value]) -> Value:
        self.require_rows_of(given[0], (16,), given[0].width)
        return Value(16, given[0].width, INT16_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return ramp(given[0], self.params)

    @property
    def pieces(self) -> Array:
        """Knots, then slopes: int16 [2, 64]."""
        return np.stack([self.params.knot, self.params.slope])

    def constants(self) -> Constants:
        return {"knot": self.params.knot, "slope": self.params.slope}, {"bits": self.params.bits}

    @classmethod
    def from_constants(
        cls, place: Mapping[str, Any], arrays: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> Ramp:
        return cls(**place, params=RampParams(**arrays, **numbers))

    @property
    def shape(self) -> str:
        return f"64 pieces of {1 << self.params.bits} steps"
