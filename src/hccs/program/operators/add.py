"""`Add`: two values to their sum, the residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.layers import INT16_LIMIT, LONG_STREAM_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.linear import add


@dataclass(frozen=True, eq=False)
class Add(Operator):
    """The sum of two int16 values as int32 or, with `limit`, as a clamped int16.

    With a limit above 32767 the sum is a clamped int32, and so is what is added.
    """

    inputs: tuple[str, str]
    output: str
    limit: int | None = None

    arity = 2

    def written(self, given: Sequence[Value]) -> Value:
        first, second = given
        if self.limit is not None:
            self.require_integer("a limit", self.limit, 1, LONG_STREAM_LIMIT)
        long = self.limit is not None and self.limit > INT16_LIMIT
        for value in given:
            self.require_rows_of(value, (32,) if long else (16,), first.width)
            self.require(
                value.largest <= LONG_STREAM_LIMIT, f"to read up to {LONG_STREAM_LIMIT}", value.largest
            )
        self.require(first.per_token == second.per_token, "to add like to like", "a token and a sequence")
        if self.limit is None:
            return Value(32, first.width, first.largest + second.largest, first.per_token)
        return Value(32 if long else 16, first.width, self.limit, first.per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return add(given[0], given[1], self.limit)
