"""`Linear`: int8 rows, with exponents or without, to int8, int16 or, as a model's scores, int32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccs.numbers.layers import (
    INT8_LIMIT,
    INT16_LIMIT,
    INT32_LIMIT,
    LONG_STREAM_LIMIT,
    ROW_MULTIPLIER,
    LinearParams,
)
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.linear import linear, linear_rows

BITS = {INT8_LIMIT: 8, INT16_LIMIT: 16, LONG_STREAM_LIMIT: 32, INT32_LIMIT: 32}


@dataclass(frozen=True, eq=False)
class Linear(Operator):
    """rq(W x + b); without multipliers the int32 sums themselves, which end a program.

    So does a limit of 2^30 - 1: a vocabulary's scores, of one step in all rows and without names. With a
    limit of 2^17 it writes what is added to an int32 stream.
    Where its input has exponents it follows their rule, and its bias counts steps of 2^-7 as much.
    """

    inputs: tuple[str]
    output: str
    params: LinearParams

    params_type = LinearParams
    separable = True

    @property
    def ends_program(self) -> bool:
        return self.params.multiplier is None or self.params.limit == INT32_LIMIT

    @property
    def labelled(self) -> bool:  # type: ignore[override]
        return self.params.multiplier is None

    def written(self, given: Sequence[Value]) -> Value:
        p = self.params
        outputs, inputs = p.weight.shape
        self.require(p.limit in tuple(BITS), "a limit of 127, 32767, 2^17 or 2^30 - 1", repr(p.limit))
        self.require(p.input_limit in (127, 128), "an input limit of 127 or 128", repr(p.input_limit))
        self.require(outputs >= 1, "at least one output", outputs)
        self.require_rows_of(given[0], (8,), inputs, exponents=p.multiplier is not None)
        if given[0].exponents:
            least = int(p.multiplier.min())  # type: ignore[union-attr]
            self.require(least >= ROW_MULTIPLIER, f"multipliers of {ROW_MULTIPLIER} or more", least)
        largest = p.largest_accumulator
        if given[0].largest > p.input_limit:
            magnitudes = abs(p.weight.astype(np.int64)).sum(1)
            largest = int((given[0].largest * magnitudes + abs(p.bias.astype(np.int64))).max())
            self.require(largest < 2**31, "accumulators below 2^31 for every input", largest)
        if p.multiplier is None:
            return Value(32, outputs, largest, given[0].per_token)
        return Value(BITS[p.limit], outputs, p.limit, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        rows = given[0].shape[-1] > self.params.weight.shape[1]
        return linear_rows(given[0], self.params) if rows else linear(given[0], self.params)

    @property
    def shape(self) -> str:
        outputs, inputs = self.params.weight.shape
        bits = 32 if self.ends_program else BITS[self.params.limit]
        return f"{inputs} -> {outputs} int{bits}"

    @property
    def products(self) -> int:
        return int(self.params.weight.size)
