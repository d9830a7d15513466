"""`First`: the first token of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.program.operators.operator import Array, Batch, OneRow


@dataclass(frozen=True, eq=False)
class First(OneRow):
    """Rows of all tokens to the row of each sequence's first token."""

    inputs: tuple[str]
    output: str

    takes_first_row = True

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return given[0][:, 0]
