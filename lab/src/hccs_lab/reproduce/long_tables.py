"""The tables of long rows."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from hccs.conversion.runs.record import StageRecord
from hccs_lab.reproduce.plan import ENCODERS
from hccs_lab.reproduce.tables import NOTHING, at, markdown_table, spread

FORMS = ("one line", "one line, wide", "two lines", "two lines, uint8")
HEAD = ("one line", "one line, wide sums", "two lines", "two lines, uint8 scores")


def load(out: Path) -> dict[str, Any]:
    """The stages of every experiment with documents, by its name."""
    return {path.stem: StageRecord(path).stages for path in sorted((out / "long" / "cells").glob("*.json"))}


def tables(cells: dict[str, Any]) -> dict[str, str]:
    """Points against float, and KL, by model and n."""
    rows: dict[str, list[list[str]]] = {"accuracy": [], "kl": []}
    for model in ("small", "minilm"):
        records = [record for name, record in cells.items() if name.startswith(f"{model}-")]
        lengths = sorted({int(n) for record in records for n in record if n.isdigit()})
        for n in lengths:
            own = [record[str(n)] for record in records if str(n) in record]
            first = [ENCODERS[model].title, str(n), str(len(own))]
            floats = spread([r["accuracy"] for r in own], [r["error"] for r in own], 4)
            rows["accuracy"].append([*first, floats, *(_points(own, form) for form in FORMS)])
            rows["kl"].append([*first, *(_kl(own, form) for form in FORMS)])
    if not rows["kl"]:
        return {}
    return {
        "long rows": markdown_table(["model", "n", "seeds", "float", *HEAD], rows["accuracy"]),
        "long rows, KL": markdown_table(["model", "n", "seeds", *HEAD], rows["kl"]),
    }


def _points(records: list[dict[str, Any]], form: str) -> str:
    found = [r[form] for r in records if at(r, form, "points") is not None]
    return spread([m["points"] for m in found], [m["points_error"] for m in found], 2, sign=True)


def _kl(records: list[dict[str, Any]], form: str) -> str:
    found = [statistics.fmean(r[form]["kl"]) for r in records if at(r, form, "kl")]
    return spread(found, [], 4) if found else NOTHING
