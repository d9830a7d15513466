"""`Multiply`: the product of two int16 values, as gated layers have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.layers import INT16_LIMIT, LONG_ROW_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.linear import multiply

MOST_BITS = 30


@dataclass(frozen=True, eq=False)
class Multiply(Operator):
    """clamp(rhe(a * b / 2^bits), -limit, limit): int16, or int32 with a limit above 32767."""

    inputs: tuple[str, str]
    output: str
    bits: int
    limit: int = INT16_LIMIT

    arity = 2

    def written(self, given: Sequence[Value]) -> Value:
        first, second = given
        for value in given:
            self.require_rows_of(value, (16,), first.width)
        self.require(
            first.per_token == second.per_token, "to multiply like by like", "a token and a sequence"
        )
        self.require_integer("bits", self.bits, 0, MOST_BITS)
        self.require_integer("a limit", self.limit, 1, LONG_ROW_LIMIT)
        return Value(16 if self.limit <= INT16_LIMIT else 32, first.width, self.limit, first.per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return multiply(given[0], given[1], self.bits, self.limit)

    @property
    def shape(self) -> str:
        return f">> {self.bits}, within {self.limit}"
