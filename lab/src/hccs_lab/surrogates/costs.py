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
        """The count for rows of k."""
        return round(self.element * k + self.sort * k * (k - 1).bit_length() + self.row)


@dataclass(frozen=True)
class Costs:
    """The declaration of one method.

    `operations` counts every add, subtract, compare, multiply, shift and table read of the algorithm as one,
    in the arithmetic that `integer_only` tells; divisions and exponentials stand apart, since a datapath
    pays a multiple for them. What is computed once per head ahead of time (tables, multipliers) costs only
    `table_bytes`.
    """

    input: str
    """Format of the logits at the method's door: "int8", "bfloat16", "float32", or as the source names it."""
    output: str
    """Format of the probabilities."""
    bits_in: int
    bits_out: int
    bits_inside: int
    """The widest intermediate."""
    table_bytes: int
    needs: frozenset[str]
    """Of `NEEDS`."""
    operations: PerRow
    divides: PerRow
    exponentials: PerRow
    integer_only: bool
    """Integers (or fixed point) alone between the int8 logits and the output."""
    trainable: bool
    """Whether the PyTorch form passes gradients to the logits."""
    source: str
    """Who published it."""

    def __post_init__(self) -> None:
        unknown = self.needs - set(NEEDS)
        if unknown:
            raise ParameterError(
                f"needs among {', '.join(NEEDS)}",
                ", ".join(sorted(unknown)),
                "Adds, multiplies, shifts go without.",
            )


def float32_costs(**declared: Any) -> Costs:
    """Of a method in float32 from its logits to its output, without a table."""
    return Costs(
        input="float32",
        output="float32",
        bits_in=32,
        bits_out=32,
        bits_inside=32,
        table_bytes=0,
        integer_only=False,
        **declared,
    )
