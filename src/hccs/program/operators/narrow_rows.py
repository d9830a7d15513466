"""`NarrowRows`: int16 rows to int8 rows with an exponent each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.multipliers import INT8_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.row_exponents import narrow_rows

MOST_CHANNELS = 8192


@dataclass(frozen=True, eq=False)
class NarrowRows(Operator):
    """clamp(rhe(x / 2^e), -127, 127) and e, the bits of the row's largest magnitude beyond seven."""

    inputs: tuple[str]
    output: str

    def written(self, given: Sequence[Value]) -> Value:
        self.require_rows_of(given[0], (16,), given[0].width)
        self.require(given[0].width <= MOST_CHANNELS, f"at most {MOST_CHANNELS} channels", given[0].width)
        return Value(8, given[0].width, INT8_LIMIT, given[0].per_token, exponents=True)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return narrow_rows(given[0])
