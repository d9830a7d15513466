"""The comparison as tables: the same rows for the terminal, for Markdown and for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.card import markdown_table
from hccs_lab.compare.entries import FLOAT
from hccs_lab.compare.measures import HEADINGS

Column = Callable[[dict[str, Any]], str]
NOTHING = "-"


Grid = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table of text: its title, header and rows."""


def _fidelity(name: str) -> Column:
    # Adding 0.0 takes the sign from what rounds to -0.
    return lambda r: f"{round(r['fidelity'][name], 4) + 0.0:.4f}" if "fidelity" in r else NOTHING


def _cost(name: str) -> Column:
    def text(record: dict[str, Any]) -> str:
        value = record.get("costs", {}).get(name, NOTHING)
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    return text


def _ratio(name: str) -> Column:
    return lambda r: f"{r['time'][name]:.2f}" if "time" in r else NOTHING


def fidelity_grid(methods: dict[str, Any]) -> Grid:
    columns = {heading: _fidelity(name) for name, heading in HEADINGS.items()}
    return _grid("Fidelity to softmax: means over rows, then heads", methods, columns)


def accuracy_grid(methods: dict[str, Any]) -> Grid:
    """Accuracy without retraining, against the float model."""
    base = methods[FLOAT]["accuracy"]

    def line(label: str, record: dict[str, Any]) -> tuple[str, ...]:
        score = record.get("accuracy")
        texts = (NOTHING,) * 2 if score is None else (f"{score:.4f}", f"{100 * (score - base):+.2f}")
        return label, _fidelity("kl_renormalised")(record), *texts

    header = ("method", "KL renorm.", "without retraining", "points")
    rows = [line(label, record) for label, record in methods.items()]
    return "Dev accuracy; points against the float model", header, rows


def cost_grid(methods: dict[str, Any]) -> Grid:
    """What each method declares for a row, and the time of its two forms."""
    lengths = {record["costs"]["k"] for record in methods.values() if "costs" in record}
    names = {"integers": "integer_only", "operations": "operations", "divides": "divides"}
    names |= {"exp": "exponentials", "table bytes": "table_bytes", "output": "output"}
    columns = {heading: _cost(name) for heading, name in names.items()}
    columns |= {"NumPy": _ratio("numpy"), "PyTorch": _ratio("torch")}
    columned = "/".join(str(k) for k in sorted(lengths))
    return _grid(f"Costs of a row of {columned}, declared; time as a ratio to softmax", methods, columns)


def _grid(title: str, methods: dict[str, Any], columns: Mapping[str, Column]) -> Grid:
    rows = [
        (label, *(text(record) for text in columns.values()))
        for label, record in methods.items()
        if label != FLOAT
    ]
    return title, ("method", *columns), rows


def grids(found: dict[str, Any]) -> list[Grid]:
    methods = found["methods"]
    return [fidelity_grid(methods), accuracy_grid(methods), cost_grid(methods)]


def write_markdown(found: dict[str, Any], path: Path) -> None:
    parts = (f"### {title}\n\n{markdown_table(header, rows)}\n" for title, header, rows in grids(found))
    atomic.replace(path, "\n".join(parts).encode())
