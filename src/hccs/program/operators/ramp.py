"""`Ramp`: GELU or SiLU on int16 values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccs.numbers.layers import INT16_LIMIT, RampParams
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.table import ramp


@dataclass(frozen=True, eq=False)
class Ramp(Operator):
    """max(x, 0) - r(|x|), with r linear on 64 pieces; input and output have one step."""

    inputs: tuple[str]
    output: str
    params: RampParams

    params_type = RampParams
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

    @property
    def shape(self) -> str:
        return f"64 pieces of {1 << self.params.bits} steps"
