"""`Narrow`: the int16 stream to int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.layers import INT8_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.linear import narrow

MOST_BITS = 31


@dataclass(frozen=True, eq=False)
class Narrow(Operator):
    """clamp(rhe(x / 2^bits), -127, 127)."""

    inputs: tuple[str]
    output: str
    bits: int

    def written(self, given: Sequence[Value]) -> Value:
        self.require_integer("bits", self.bits, 0, MOST_BITS)
        self.require_rows_of(given[0], (16,), given[0].width)
        return Value(8, given[0].width, INT8_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return narrow(given[0], self.bits)

    @property
    def shape(self) -> str:
        return f">> {self.bits}"
