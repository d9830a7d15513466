"""`Pool`: the tokens of every sequence as one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccs.numbers.layers import INT16_LIMIT
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.pooling import pool

POOLINGS = ("mean", "last", "max")
"""The first token is what `First` takes: then nothing else needs to be computed."""

LONGEST_SUM = 2**16
"""Tokens of int16 whose sum fits int32."""


@dataclass(frozen=True, eq=False)
class Pool(Operator):
    """The sum of a sequence's int16 rows, its last row, or its maxima: int32.

    With `divided` the result is int16, and a mean is rounded.
    """

    inputs: tuple[str]
    output: str
    pooling: str
    divided: bool = False

    mixes_rows = True

    def written(self, given: Sequence[Value]) -> Value:
        self.require(self.pooling in POOLINGS, f"a pooling among {', '.join(POOLINGS)}", repr(self.pooling))
        self.require(isinstance(self.divided, bool), "divided to be true or false", repr(self.divided))
        self.require_rows_of(given[0], (16,), given[0].width, tokens=True)
        largest = INT16_LIMIT * (LONGEST_SUM if self.pooling == "mean" else 1)
        if self.divided:
            return Value(16, given[0].width, INT16_LIMIT, per_token=False)
        return Value(32, given[0].width, largest, per_token=False)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        self.require_rows(given[0].shape[1])
        rows = zip(given[0], batch.lengths, strict=True)
        return np.stack([pool(h[:length], self.pooling, divided=self.divided) for h, length in rows])

    def require_rows(self, rows: int) -> None:
        self.require(rows <= LONGEST_SUM, f"at most {LONGEST_SUM} tokens", rows)

    @property
    def longest_row(self) -> int:
        return LONGEST_SUM

    @property
    def shape(self) -> str:
        return self.pooling + (", divided" if self.divided else "")
