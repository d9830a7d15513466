"""Elements of HTML: text is escaped on its way in, so no label of a data set can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_VOID = frozenset({"br", "circle", "hr", "line", "link", "meta", "path", "polyline", "rect"})
"""Elements without content: written as `<br />`, which HTML and XML both read."""


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; None leaves a child or an attribute out, a trailing `_` frees Python's own words.

    >>> tag("p", "a < b", tag("b", "!"), class_="note", hidden=None)
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    opening = "".join([name, *map(_attribute, attributes.items())])
    if name in _VOID:
        return Markup(f"<{opening} />")
    return Markup(f"<{opening}>{joined(children)}</{name}>")


def _attribute(item: tuple[str, Any]) -> str:
    name, value = item
    if value is None or value is False:
        return ""
    # viewBox and its like keep their case; aria_label becomes aria-label.
    spelled = name.rstrip("_").replace("_", "-")
    return f' {spelled}="{html.escape("" if value is True else str(value))}"'


def joined(children: Iterable[Any]) -> Markup:
    """Children one after the other: markup as it is, lists flattened, anything else escaped."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, list | tuple):
            parts.append(str(joined(child)))
        else:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))


def table(
    header: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    class_: str | None = None,
    style: str | None = None,
) -> Markup:
    """A table: its first column names the row."""
    return tag(
        "table",
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in header])),
        tag(
            "tbody",
            [
                tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]])
                for row in rows
            ],
        ),
        class_=class_,
        style=style,
    )
