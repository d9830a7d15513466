"""How objects show themselves in notebooks: a framed table, small, with the notebook's own colours."""

from __future__ import annotations

from typing import Any

from hccs._html.elements import Markup, tag

TABLE = (
    "border-collapse:separate;border-spacing:1em .12em;margin:.3em 0 .3em -1em;text-align:left;"
    "font-variant-numeric:tabular-nums"
)
FRAME = (
    "border-left:3px solid #b4551d;padding:.1em 0 .1em .9em;margin:.3em 0;max-width:60em;"
    "overflow-x:auto;line-height:1.45"
)
MOST_ROWS = 48
"""Rows of a table that are shown before the others are only counted."""


def framed(title: str, *children: Any) -> Markup:
    return tag("div", tag("div", tag("strong", title)), *children, style=FRAME)


def first_rows(rows: list[Any]) -> tuple[list[Any], Markup | None]:
    """The first rows, and a note on how many are left out."""
    left = len(rows) - MOST_ROWS
    return rows[:MOST_ROWS], tag("p", f"and {left} more") if left > 0 else None
