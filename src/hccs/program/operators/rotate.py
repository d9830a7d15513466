"""`Rotate`: int16 rows of q, k and v to int8, q and k turned by their position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.layers import INT8_LIMIT
from hccs.numbers.rotary import RotateParams
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.rotary import rotate


@dataclass(frozen=True, eq=False)
class Rotate(Operator):
    """Rows of q, k and v side by side, [n, (heads + 2 * kv_heads) * d], as `Attention` reads them."""

    inputs: tuple[str]
    output: str
    params: RotateParams

    params_type = RotateParams
    uses_position = True

    def written(self, given: Sequence[Value]) -> Value:
        width, p = given[0].width, self.params
        self.require_rows_of(given[0], (16,), width, tokens=True)
        self.require(
            width % p.all_heads == 0 and width // p.all_heads >= 2 * p.pairs,
            f"to read {p.all_heads} heads of at least {2 * p.pairs} channels",
            f"{width} channels",
        )
        return Value(8, width, INT8_LIMIT)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        positions = batch.positions(given[0].shape[1])
        self.require_rows(int(positions.max(initial=0)) + 1)
        return rotate(given[0], positions, self.params)

    def require_rows(self, rows: int) -> None:
        self.require(rows <= self.longest_row, f"at most {self.longest_row} positions", rows)

    @property
    def longest_row(self) -> int:
        return self.params.positions

    @property
    def shape(self) -> str:
        p = self.params
        return (
            f"{p.heads} + 2 x {p.kv_heads} heads, {2 * p.pairs} channels of each by {p.positions} positions"
        )
