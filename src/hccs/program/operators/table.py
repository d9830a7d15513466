"""`Table`: one int8 look-up per value, for activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.table import look_up


@dataclass(frozen=True, eq=False)
class Table(Operator):
    """entries[x + 128] of int8 values."""

    inputs: tuple[str]
    output: str
    entries: NDArray[np.int8]

    overwrites = True

    def written(self, given: Sequence[Value]) -> Value:
        kind = (getattr(self.entries, "shape", None), str(getattr(self.entries, "dtype", "")))
        self.require(kind == ((256,), "int8"), "256 entries of int8", kind)
        self.require_rows_of(given[0], (8,), given[0].width)
        largest = int(abs(self.entries.astype(np.int16)).max())
        return Value(8, given[0].width, largest, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return look_up(given[0], self.entries)
