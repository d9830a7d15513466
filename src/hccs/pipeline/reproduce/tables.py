"""The reproduction's tables: means and spreads over seeds, beside the paper's numbers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.pipeline.reproduce.accuracy import VARIANTS, load_results

PAPER = {
    ("sst2", "tiny"): (0.825, 0.619, 0.822),
    ("sst2", "small"): (0.893, 0.766, 0.878),
    ("mnli", "tiny"): (0.653, 0.480, 0.639),
    ("mnli", "small"): (0.742, 0.602, 0.723),
}
PAPER_GRANULARITY = {
    ("sst2", "tiny"): (0.817, 0.819, 0.822),
    ("sst2", "small"): (0.834, 0.842, 0.878),
    ("mnli", "tiny"): (0.416, 0.552, 0.639),
    ("mnli", "small"): (0.545, 0.602, 0.723),
}
MODES = ("i16_div", "i16_clb", "u8_div", "u8_clb")
GROUPS = [("sst2", "tiny"), ("sst2", "small"), ("mnli", "tiny"), ("mnli", "small"), ("sst2", "minilm")]


def write(out: Path) -> None:
    """`accuracy.json` (every cell, every step) and `accuracy.md` (the tables) in the results folder."""
    results = load_results(out)
    atomic.replace(out / "accuracy.json", json.dumps(results, indent=1).encode())
    atomic.replace(out / "accuracy.md", markdown(results).encode())


def markdown(results: dict[str, Any]) -> str:
    """All tables as Markdown."""
    groups = {group: found for group in GROUPS if (found := _records(results, *group))}
    parts = [
        "### Accuracy (i16_div, one triple per head)",
        markdown_table(
            [
                "task",
                "model",
                "seeds",
                "float",
                "without retraining",
                "loss, points",
                "retrained",
                "delta, points",
                "paper: float / without / retrained",
            ],
            (_accuracy_row(group, found) for group, found in groups.items()),
        ),
        "### Granularity after retraining",
        markdown_table(
            ["task", "model", "global", "layer", "head", "paper: global / layer / head"],
            (_granularity_row(group, found) for group, found in groups.items()),
        ),
        "### Without retraining, by way of calibrating: loss in points, i16_div",
        markdown_table(
            ["task", "model", *_WAYS.values(), "mean KL over heads"],
            (_ways_row(g, f) for g, f in groups.items()),
        ),
        "### The four modes",
        markdown_table(
            [
                "task",
                "model",
                *(f"without: {m}" for m in MODES),
                *(f"retrained i16_div, run in {m}" for m in MODES),
                "retrained and run in u8_clb",
            ],
            (_modes_row(g, f) for g, f in groups.items()),
        ),
        "### Retraining variants: delta against the float model, points",
        markdown_table(["task", "model", *VARIANTS], (_variants_row(g, f) for g, f in groups.items())),
    ]
    return "\n\n".join(parts) + "\n"


_WAYS = {
    "head": "per head",
    "layer": "per layer",
    "global": "global",
    "in sequence": "in sequence",
    "refined i16_div": "refined",
}


def _records(results: dict[str, Any], task: str, model: str) -> list[dict[str, Any]]:
    return [
        r for name, r in results["cells"].items() if name.startswith(f"{model}-{task}-") and "without" in r
    ]


def markdown_table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Rows under their headings."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def spread(values: Sequence[float], digits: int = 4, sign: bool = False) -> str:
    """mean ± standard deviation over seeds."""
    if not values:
        return "-"
    form = f"{'+' if sign else ''}.{digits}f"
    mean = format(statistics.fmean(values), form)
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def _points(records: Sequence[dict[str, Any]], pick: Any) -> str:
    found = [100 * (value - r["float"]["accuracy"]) for r in records if (value := pick(r)) is not None]
    return spread(found, 2, sign=True)


def _retrained(record: dict[str, Any], variant: str) -> float | None:
    step = record.get(f"retrained/{variant}")
    return None if step is None else step["accuracy"]


def _accuracy_row(group: tuple[str, str], records: list[dict[str, Any]]) -> list[str]:
    retrained = [a for r in records if (a := _retrained(r, "head")) is not None]
    paper = PAPER.get(group)
    return [
        *group,
        str(len(records)),
        spread([r["float"]["accuracy"] for r in records]),
        spread([r["without"]["head"]["accuracy"]["i16_div"] for r in records]),
        _points(records, lambda r: r["without"]["head"]["accuracy"]["i16_div"]),
        spread(retrained),
        _points(records, lambda r: _retrained(r, "head")),
        " / ".join(f"{p:.3f}" for p in paper) if paper else "-",
    ]


def _granularity_row(group: tuple[str, str], records: list[dict[str, Any]]) -> list[str]:
    cells = [
        spread([a for r in records if (a := _retrained(r, g)) is not None])
        for g in ("global", "layer", "head")
    ]
    paper = PAPER_GRANULARITY.get(group)
    return [*group, *cells, " / ".join(f"{p:.3f}" for p in paper) if paper else "-"]


def _ways_row(group: tuple[str, str], records: list[dict[str, Any]]) -> list[str]:
    losses = [_points(records, lambda r, way=way: r["without"][way]["accuracy"]["i16_div"]) for way in _WAYS]
    return [*group, *losses, spread([statistics.fmean(r["without"]["head"]["kl"]) for r in records])]


def _modes_row(group: tuple[str, str], records: list[dict[str, Any]]) -> list[str]:
    without = [spread([r["without"]["head"]["accuracy"][m] for r in records], 3) for m in MODES]
    after = [r["retrained/head"]["modes"] for r in records if "retrained/head" in r]
    own = [r["retrained/u8_clb"]["accuracy"] for r in records if "retrained/u8_clb" in r]
    return [*group, *without, *(spread([a[m] for a in after], 3) for m in MODES), spread(own, 3)]


def _variants_row(group: tuple[str, str], records: list[dict[str, Any]]) -> list[str]:
    return [*group, *(_points(records, lambda r, v=v: _retrained(r, v)) for v in VARIANTS)]
