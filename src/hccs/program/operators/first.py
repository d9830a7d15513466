"""`First`: the first token of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hccs.program.operators.operator import Array, Batch, Operator, Value


@dataclass(frozen=True, eq=False)
class First(Operator):
    """Rows of all tokens to the row of each sequence's first token."""

    inputs: tuple[str]
    output: str

    takes_first_row = True
    copies_row = True

    def written(self, given: Sequence[Value]) -> Value:
        self.require_rows_of(given[0], (8, 16), given[0].width, tokens=True, exponents=True)
        return replace(given[0], per_token=False)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return given[0][:, 0]
