"""A report's page: one HTML file with its style, its pictures and a short script inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hccs
from hccs._html.elements import Markup, joined, tag

HERE = Path(__file__).parent

MINUS = "\N{MINUS SIGN}"

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing is fetched: what is not in the file is not on the page."""


@dataclass(frozen=True)
class Section:
    """A part of the page under its heading."""

    key: str
    title: str
    content: Sequence[Any]


@dataclass(frozen=True)
class Fact:
    """A number that deserves to be large, what it is, and what stands beside it."""

    name: str
    value: str
    beside: str = ""


@dataclass(frozen=True)
class Report:
    """All that a page says; `sentence` is the summary, `kicker` the kind of report."""

    kicker: str
    title: str
    sentence: str
    facts: Sequence[Fact]
    warnings: Sequence[str]
    sections: Sequence[Section]

    def html(self) -> str:
        return "<!doctype html>\n" + tag(
            "html",
            tag(
                "head",
                tag("meta", charset="utf-8"),
                tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                tag(
                    "meta",
                    http_equiv="Content-Security-Policy",
                    content=POLICY,
                ),
                tag("title", f"{self.title} · hccs"),
                tag("style", Markup(_asset("page.css"))),
            ),
            tag("body", self._body(), tag("script", Markup(_asset("page.js")))),
            lang="en",
        )

    def _body(self) -> Markup:
        shown = [section for section in self.sections if section.content]
        return joined(
            [
                tag(
                    "header",
                    tag("p", self.kicker, class_="kicker"),
                    tag("h1", self.title),
                    tag("p", self.sentence, class_="lead", id="summary"),
                    _facts(self.facts),
                    _warnings(self.warnings),
                    tag("nav", [tag("a", s.title, href=f"#{s.key}") for s in shown], aria_label="Sections"),
                ),
                tag("main", [tag("section", tag("h2", s.title), s.content, id=s.key) for s in shown]),
                tag("footer", f"Written by hccs {hccs.__version__}. This file needs no other."),
            ]
        )


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _facts(facts: Sequence[Fact]) -> Markup | None:
    if not facts:
        return None
    return tag(
        "dl",
        [
            tag("div", tag("dt", f.name), tag("dd", f.value, tag("small", f.beside) if f.beside else None))
            for f in facts
        ],
        class_="facts",
    )


def _warnings(lines: Sequence[str]) -> Markup | None:
    if not lines:
        return None
    title = tag("strong", "Warning" if len(lines) == 1 else f"{len(lines)} warnings")
    return tag("div", title, tag("ul", [tag("li", line) for line in lines]), class_="note", id="warnings")


def boxed(
    header: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    class_: str | None = None,
    every_column: bool = False,
) -> Markup:
    """A table whose rows become cards on a narrow page; columns without a cell are left out.

    With `every_column` it stays a table, which scrolls in its own box.
    """
    lines = [list(row) for row in rows]
    chosen = range(len(header))
    kept = [i for i in chosen if i == 0 or every_column or any(str(line[i]) for line in lines)]
    names = [header[i] for i in kept]
    body = [
        tag(
            "tr",
            tag("th", line[0], scope="row"),
            [tag("td", line[i], data_label=header[i] or None, class_=_kind(line[i])) for i in kept[1:]],
        )
        for line in lines
    ]
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in names]))
    kind = " ".join(filter(None, ["" if every_column else "cards", class_])) or None
    return tag("div", tag("table", head, tag("tbody", body), class_=kind), class_="box", tabindex=0)


def _kind(cell: Any) -> str | None:
    if isinstance(cell, Markup) and cell.startswith("<svg"):
        return "chart"
    return None if str(cell) else "none"


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign; what rounds to nothing has none.

    >>> signed(-0.5).replace(MINUS, "minus "), signed(0.001)
    ('minus 0.50', '0.00')
    """
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}".replace("-", MINUS) if rounded else f"{0:.{digits}f}"


def words(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Names and what they stand for."""
    body = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    return tag("div", tag("table", tag("tbody", body), class_="words"), class_="box")


def command(text: str, about: str = "") -> Markup:
    """A command to copy, under a line that says what it does."""
    return joined(
        [
            tag("p", about, class_="quiet") if about else None,
            tag(
                "div",
                tag("button", "copy", type="button", data_copy=True, class_="scripted"),
                tag("pre", tag("code", text)),
                class_="command",
            ),
        ]
    )


def paragraph(*children: Any) -> Markup:
    return tag("p", *children)


def key(**colours: str) -> Markup:
    """The legend of a chart: names, with underscores for blanks, and their colours."""
    return tag(
        "span",
        [
            tag("span", tag("i", style=f"background:{colour}"), name.replace("_", " "))
            for name, colour in colours.items()
        ],
        class_="key",
    )
