"""The report of `hccs reproduce`: its tables as they were written, and the curves that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, Curve, curves
from hccs._html.elements import Markup, tag
from hccs.errors import FileError
from hccs.pipeline.report.page import Fact, Report, Section, boxed, key, said, words
from hccs.pipeline.runs.record import read_json

TABLES = {
    "accuracy": "The paper's tables",
    "whole_encoder": "Whole encoders in integers",
    "fidelity": "Fidelity",
}
"""Markdown files of a reproduction, in the order of the page."""


def reproduction_report(folder: Path) -> Report:
    """The report of a reproduction's folder."""
    texts = {
        name: (folder / f"{name}.md").read_text("utf-8")
        for name in TABLES
        if (folder / f"{name}.md").exists()
    }
    if not texts:
        raise FileError(f"tables in {folder}", "none", "Let hccs reproduce come to its end first.")
    cells = sorted(path.stem for path in (folder / "cells").glob("*.json"))
    models, tasks = ({name.split("-")[i] for name in cells} for i in (0, 1))
    seeds = len({name.split("-")[-1] for name in cells})
    sections = [
        Section(name, TABLES[name], [part for grid in markdown_tables(text) for part in grid])
        for name, text in texts.items()
    ]
    return Report(
        kicker="hccs reproduce",
        title="The paper, reproduced",
        sentence=f"{len(cells)} experiments: {_list(models)} on {_list(tasks)}, over {seeds} "
        f"seed{'s' * (seeds > 1)}; beside every number of ours that has one stands the paper's.",
        facts=[Fact("experiments", str(len(cells))), Fact("seeds", str(seeds))],
        warnings=[],
        sections=[
            *sections,
            Section("curves", "Curves", _curves(folder)),
            Section("again", "Settings", _settings(folder)),
        ],
    )


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def markdown_tables(text: str) -> Iterator[list[Markup]]:
    """Every table of a Markdown text under the heading before it."""
    heading, lines = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if len(lines) > 2:
            yield [*([tag("h3", heading)] if heading else []), boxed(lines[0], lines[2:])]
            heading = ""
        lines = []
        heading = line.lstrip("# ") if line.startswith("#") else heading


def _curves(folder: Path) -> list[Markup]:
    """Mean probability over key index of the broadest and the most focused head of every measured cell."""
    panels = []
    for path in sorted((folder / "fidelity").glob("*.json")):
        for name, curve in json.loads(path.read_text())["curves"].items():
            panels.append(_panel(f"{path.stem}: {name}, layer {curve['layer']}, head {curve['head']}", curve))
    if not panels:
        return []
    return [
        said("Mean probability over key index."),
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
