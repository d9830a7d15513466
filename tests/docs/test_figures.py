"""The figures on the pages are those of docs/results, and every file there says where it comes from.

A table or paragraph of figures is followed by an HTML comment that says how its text follows from a file:

    <!-- from docs/results/encoder_cpu.json
    {min(row["over"] for row in rows); .2f} to {max(row["over"] for row in rows); .2f} times
    -->

Each line is a template: an expression over the file's entries, then a format. Lists are joined by " | ", or by what
stands after a second semicolon. The text that a line makes must be in the block above. `<!-- from docs/results/transcribed.json:
NAME -->` compares a table with one whose raw data were not kept, and `<!-- modelled by COMMAND -->` marks
figures that a model, not a measurement, gives.
"""  # noqa: E501

from __future__ import annotations

import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT

RESULTS = ROOT / "docs" / "results"
FILES = sorted(RESULTS.rglob("*.json"))
# The arithmetic's own numbers, and pages about the project.
NOT_MEASURED = {"docs/spec.md", "docs/architectures.md", "docs/design.md", "docs/api.md", "CONTRIBUTING.md"}
COMMENT = re.compile(
    r"<!-- (from (?P<file>[\w./]+)(?:: (?P<name>[^\n]+?))?(?P<lines>\n.*?)?|modelled by .*?)\s*-->", re.S
)
TEMPLATE = re.compile(r"\{(.+?); ([^;{}]+?)(?:;(.+?))?\}")
MEASURED_CELL = re.compile(r"\**[+-]?\d[\d,]*\.\d")


def blocks(page: str) -> list[tuple[str, re.Match[str]]]:
    """Every comment of a page with the text above it, up to a heading, a fence or another block's comment."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[tuple[str, re.Match[str]]] = []
    start = 0
    for comment in COMMENT.finditer(text):
        above = text[start : comment.start()]
        if above.strip() or not found:
            above = re.split(r"^(?:#|```).*$", above, flags=re.M)[-1]
        else:
            above = found[-1][0]  # several comments belong to one block
        found.append((above, comment))
        start = comment.end()
    return found


def mean(cells: dict[str, Any], group: str, *path: str) -> float:
    """The mean over seeds of a number of the reproduction's records; `group` is such as "tiny-sst2"."""
    return fmean(reduce(getitem, path, cell) for name, cell in cells.items() if name.startswith(f"{group}-"))


def points(cells: dict[str, Any], *path: str) -> list[str]:
    """Mean differences from float at a place of those records: three models on SST-2, then on MNLI."""
    groups = [f"{model}-{task}" for task in ("sst2", "mnli") for model in ("tiny", "small", "minilm")]
    means = [mean(cells, group, *path, "points") for group in groups]
    return [f"{x:+.1f}" if abs(x) >= 0.05 else "0.0" for x in means]


def made(template: str, data: dict[str, Any]) -> str:
    """The text that a template makes of a file's entries."""

    def value(field: re.Match[str]) -> str:
        entries = {name: entry for name, entry in data.items() if name.isidentifier()}
        names = {"data": data, "mean": mean, "points": points, **entries}
        found = eval(field[1], names)
        values = list(found) if isinstance(found, list | tuple) or hasattr(found, "__next__") else [found]
        return (field[3] or " | ").join(format(x, field[2].strip()) for x in values)

    return TEMPLATE.sub(value, template)


def plain(text: str) -> str:
    return " ".join(text.replace("*", "").replace("`", "").split())


def table_rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without the rules below their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [row for row in rows if not re.fullmatch(r"[-: ]+", "".join(row))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_figures_are_those_of_the_files(page):
    wrong = []
    for text, comment in blocks(page):
        if comment["file"] is None:
            continue
        data = json.loads((ROOT / comment["file"]).read_text(encoding="utf-8"))
        if comment["name"] is not None:
            if (entry := data["tables"].get(comment["name"])) is None:
                wrong.append(f"no {comment['name']!r} in {comment['file']}")
            elif table_rows(text)[-len(entry["rows"]) :] != entry["rows"]:
                wrong.append(f"the table above is not {comment['name']!r} of {comment['file']}")
            continue
        for line in (comment["lines"] or "").strip().splitlines():
            expected = plain(made(line, data))
            if expected not in plain(text):
                wrong.append(f"{comment['file']} says {expected!r}")
    assert not wrong, f"{page}: " + "\n".join(wrong)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_MEASURED])
def test_every_table_of_figures_names_its_source(page):
    text = COMMENT.sub(lambda comment: comment[0][:12], (ROOT / page).read_text(encoding="utf-8"))
    without = []
    for table in re.finditer(r"(?:^\|.*\n)+", text, re.M):
        cells = [cell for row in table_rows(table[0]) for cell in row if MEASURED_CELL.match(cell)]
        after = text[table.end() :].lstrip()
        if len(cells) >= 3 and not after.startswith(("<!-- from", "<!-- modelle", "<!-- end of table")):
            without.append(table[0].splitlines()[0])
    assert not without, f"{page}: no comment says where these come from:\n" + "\n".join(without)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_file_says_where_it_comes_from(file: Path):
    data = json.loads(file.read_text(encoding="utf-8"))
    origins = (
        [table["provenance"] for table in data["tables"].values()]
        if "tables" in data
        else [data["provenance"]]
    )
    for origin in origins:
        assert {"commit", "recorded"} <= set(origin) and ({"cpu", "gpu"} & set(origin)), origin
        assert re.fullmatch(r"[0-9a-f]{7,40}", origin["commit"]) and re.fullmatch(
            r"\d{4}-\d\d-\d\d", origin["recorded"]
        )


def test_every_file_is_used():
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [file.name for file in FILES if f"results/{file.relative_to(RESULTS)}" not in pages] == []
    named = set(re.findall(r"<!-- from docs/results/transcribed\.json: ([^\n]+?) -->", pages))
    assert named == set(json.loads((RESULTS / "transcribed.json").read_text(encoding="utf-8"))["tables"])


def test_the_tables_of_the_reproduction_are_made_from_its_file():
    tables = pytest.importorskip("hccs_lab.reproduce.tables")
    data = json.loads((RESULTS / "reproduction.json").read_text(encoding="utf-8"))
    known = tables.every_table(data["cells"], data["long"])
    wrong = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, table in re.findall(r"<!-- table: (.*?) -->\n(.*?)\n<!-- end of table -->", text, re.S):
            if table.strip() != known[name].strip():
                wrong.append(f"{page}: {name}")
    assert not wrong


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{x; .1f} times", "2.5 times"),
        ("| a | {rows; .0f} |", "| a | 1 | 2 |"),
        ("{min(rows); .2f} to {max(rows); .2f}", "1.00 to 2.00"),
        ("{rows; .1f; / }", "1.0 / 2.0"),
    ],
)
def test_templates(template, expected):
    assert made(template, {"x": 2.49999, "rows": [1, 2]}) == expected
