"""Tables on the terminal: whole headings at any width, and Markdown where no table fits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

GAP = 2
"""Blanks between columns: one of padding, one that the box puts there."""


def show(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: headings fold at blanks where they must; where even that is too wide, as Markdown."""
    for heads in (header, ["\n".join(name.split()) for name in header]):
        if _width(heads, rows) <= console.width:
            console.print(_table(title, heads, rows), highlight=False, markup=False)
            return
    console.print(markdown(title, header, rows), soft_wrap=True, highlight=False, markup=False)


def markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([title, "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = zip(header, *rows, strict=True)
    widths = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    return sum(widths) + GAP * (len(widths) - 1)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
