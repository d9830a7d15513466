"""`Unit`: unit vectors, a program's answer where it embeds texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccs.numbers.layers import INT16_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.pooling import unit

MOST_CHANNELS = 4096


@dataclass(frozen=True, eq=False)
class Unit(Operator):
    """The first `dims` channels as a vector of length 1 in Q15: 32767 stands for 1."""

    inputs: tuple[str]
    output: str
    dims: int

    ends_program = True
    labelled = False

    def written(self, given: Sequence[Value]) -> Value:
        self.require_rows_of(given[0], (8, 16, 32), given[0].width)
        self.require_integer("dims", self.dims, 1, min(given[0].width, MOST_CHANNELS))
        return Value(16, self.dims, INT16_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        rows = given[0][..., : self.dims]
        units = [unit(row.astype(np.int32)) for row in rows.reshape(-1, self.dims)]
        return np.stack(units).reshape(rows.shape)
