"""The report of `hccs reproduce`: all its tables, and the curves that were measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, Curve, curves
from hccs._html.elements import Markup, tag
from hccs.conversion.report.page import Fact, Report, Section, boxed, key, paragraph, words
from hccs.conversion.runs.record import read_json
from hccs.errors import FileError
from hccs_lab.reproduce import tables


def reproduction_report(folder: Path) -> Report:
    cells = tables.load(folder) if (folder / "cells").is_dir() else {}
    found = tables.groups(cells)
    made = tables.every_table(cells, tables.load_long(folder))
    if not made:
        raise FileError(f"results in {folder}", "none", "Let hccs reproduce come further first.")
    seeds = max((len(group.records) for group in found), default=0)
    return Report(
        kicker="hccs reproduce",
        title="The paper, reproduced",
        sentence=f"{len(cells)} experiments over {seeds} seed{'s' * (seeds != 1)}: "
        f"{'; '.join(group.name for group in found) or 'long rows'}. Where the paper has a number, it "
        "stands beside ours; errors are over the examples, in brackets those over seeds.",
        facts=[Fact("experiments", str(len(cells))), Fact("seeds", str(seeds))],
        warnings=[],
        sections=[
            *(
                Section(name.replace(" ", "-").replace(",", ""), name.capitalize(), _table(text))
                for name, text in made.items()
            ),
            Section("curves", "Curves", _curves(cells)),
            Section("settings", "Settings", _settings(folder)),
        ],
    )


def _table(text: str) -> list[Markup]:
    """A Markdown table as one of the page; nothing of one without rows."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [boxed(cells[0], cells[2:])] if len(cells) > 2 else []


def _curves(cells: Mapping[str, Any]) -> list[Markup]:
    """Mean probability over key index of the broadest and the most focused head of every cell."""
    panels = [
        _panel(f"{cell}: {name}, layer {curve['layer']}, head {curve['head']}", curve)
        for cell, stages in cells.items()
        for name, curve in (tables.at(stages, "retrained", "fidelity", "curves") or {}).items()
    ]
    if not panels:
        return []
    return [
        paragraph("Mean probability over key index."),
        tag("p", key(softmax=THEIRS, HCCS=OURS)),
        tag("div", panels, class_="grid"),
    ]


def _panel(name: str, curve: Mapping[str, Any]) -> Markup:
    lines = [
        Curve(kind, list(enumerate(map(float, curve[kind]))), colour)
        for kind, colour in (("softmax", THEIRS), ("hccs", OURS))
    ]
    top = max(value for line in lines for _, value in line.points) or 1.0
    chart = curves(lines, "key", described=name, width=260, height=150, y=(0.0, 1.05 * top))
    return tag("figure", tag("figcaption", name), chart)


def _settings(folder: Path) -> list[Markup]:
    path = folder / "settings.json"
    settings = read_json(path, "Run hccs reproduce again.") if path.exists() else {}
    return [words([(name, json.dumps(value)) for name, value in settings.items()])] if settings else []
