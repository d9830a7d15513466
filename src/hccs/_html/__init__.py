"""How objects show themselves in notebooks: small framed tables, escaped, that need no other package."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

TABLE = (
    "border-collapse:separate;border-spacing:1em .12em;margin:.3em 0 .3em -1em;text-align:left;"
    "font-variant-numeric:tabular-nums"
)
FRAME = (
    "border-left:3px solid #b4551d;padding:.1em 0 .1em .9em;margin:.3em 0;max-width:60em;"
    "overflow-x:auto;line-height:1.45"
)
OURS = "var(--ours, #b4551d)"

MOST_ROWS = 48
"""Rows of a table that are shown before the others are only counted."""

_VOID = frozenset({"circle", "polyline"})
"""Elements without content."""


class Markup(str):
    """Text that is HTML already, and is not escaped again; templates know it by `__html__`."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; None leaves a child or an attribute out, a trailing `_` frees Python's own words.

    >>> tag("p", "a < b", tag("b", "!"), class_="note", hidden=None)
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    opening = "".join([name, *map(_attribute, attributes.items())])
    return Markup(f"<{opening} />" if name in _VOID else f"<{opening}>{joined(children)}</{name}>")


def _attribute(item: tuple[str, Any]) -> str:
    name, value = item
    if value is None:
        return ""
    # viewBox and its like keep their case; stroke_width becomes stroke-width.
    return f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'


def joined(children: Iterable[Any]) -> Markup:
    """Children one after the other: markup as it is, lists flattened, anything else escaped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(joined(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else html.escape(str(child)))
    return Markup("".join(parts))


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table: its first column names the row."""
    return tag(
        "table",
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in header])),
        tag("tbody", [tag("tr", tag("th", r[0], scope="row"), [tag("td", c) for c in r[1:]]) for r in rows]),
        style=TABLE,
    )


def framed(title: str, *children: Any) -> Markup:
    return tag("div", tag("div", tag("strong", title)), *children, style=FRAME)


def first_rows(rows: list[Any]) -> tuple[list[Any], Markup | None]:
    """The first rows, and a note on how many are left out."""
    left = len(rows) - MOST_ROWS
    return rows[:MOST_ROWS], tag("p", f"and {left} more") if left > 0 else None


def sparkline(values: Sequence[float], *, described: str, width: float = 120, height: float = 24) -> Markup:
    """A line without axes: the shape of some numbers, the last one dotted."""
    low, high = min(values), max(values)
    step, slope = (width - 8) / max(1, len(values) - 1), (height - 6) / ((high - low) or 1)
    points = [
        f"{3 + step * i:.1f},{height - 3 - slope * (value - low):.1f}" for i, value in enumerate(values)
    ]
    x, y = points[-1].split(",")
    return tag(
        "svg",
        tag("title", described),
        tag("polyline", points=" ".join(points), style=f"fill:none;stroke:{OURS};stroke-width:1.4"),
        tag("circle", cx=x, cy=y, r=2.4, style=f"fill:{OURS}"),
        viewBox=f"0 0 {width:g} {height:g}",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        style=f"width:100%;max-width:{width:g}px;height:auto;display:block",
    )
