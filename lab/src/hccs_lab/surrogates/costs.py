"""What a method costs, declared in its file and read by machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hccs.errors import ParameterError

NEEDS = ("exp", "divide", "table", "sort", "max", "sum")
"""What a method may need at run time beyond adds, multiplies and shifts."""


@dataclass(frozen=True)
class PerRow:
    """A count for a row of k elements: element*k + sort*k*ceil(log2 k) + row.

    >>> PerRow(element=3, row=1)(64)
    193
    """

    element: float = 0
    row: float = 0
    sort: float = 0

    def __call__(self, k: int) -> int:
        return round(self.element * k + self.sort * k * (k - 1).bit_length() + self.row)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The declaration of one method.

    `operations` counts every add, subtract, compare, multiply, shift and table read of the algorithm as one,
    in the arithmetic that `integer_only` tells; divisions and exponentials stand apart, since a datapath
    pays a multiple for them. What is computed once per head ahead of time (tables, multipliers) costs only
    `table_bytes`.
    """

    needs: frozenset[str]
    """Among `NEEDS`."""
    operations: PerRow
    output: str
    """Format of the probabilities."""
    source: str
    """Who published it."""
    input: str = "int8"
    """Format of the logits at the method's door: "int8", "bfloat16", "float32", or as the source names it."""
    bits_inside: int = 32
    """The widest intermediate."""
    table_bytes: int = 0
    divides: PerRow = PerRow()
    exponentials: PerRow = PerRow()
    integer_only: bool = True
    """Only integers (or fixed point) lie between the int8 logits and the output."""

    def __post_init__(self) -> None:
        unknown = self.needs - set(NEEDS)
        if unknown:
            raise ParameterError(
                f"needs among {', '.join(NEEDS)}",
                ", ".join(sorted(unknown)),
                "Adds, multiplies, shifts go without.",
            )


def float32_costs(**declared: Any) -> Costs:
    """The costs of a method in float32 from its logits to its output, without a table."""
    return Costs(input="float32", output="float32", integer_only=False, **declared)
