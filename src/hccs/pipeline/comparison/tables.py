"""The comparison as tables: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs import _safetensors
from hccs.pipeline.comparison.entries import FLOAT


@dataclass(frozen=True)
class Grid:
    """A titled table of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As a Markdown table under its title."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


Column = tuple[str, Callable[[dict[str, Any]], str]]


def _fidelity(name: str, digits: int = 4) -> Callable[[dict[str, Any]], str]:
    def text(record: dict[str, Any]) -> str:
        return f"{record['fidelity'][name]:.{digits}f}" if "fidelity" in record else "-"

    return text


def _cost(name: str) -> Callable[[dict[str, Any]], str]:
    def text(record: dict[str, Any]) -> str:
        value = record.get("costs", {}).get(name, "-")
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    return text


def _ratio(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda record: f"{record['time'][name]:.2f}" if "time" in record else "-"


def fidelity_grid(methods: dict[str, Any]) -> Grid:
    """Every measure, mean over heads."""
    columns: list[Column] = [
        ("KL", _fidelity("kl")),
        ("KL, renormalised", _fidelity("kl_renormalised")),
        ("total variation", _fidelity("total_variation")),
        ("top-1", _fidelity("top1")),
        ("rank corr.", _fidelity("rank_correlation")),
        ("sum error", _fidelity("sum_error")),
        ("zeros", _fidelity("sparsity")),
    ]
    return _grid("Fidelity to softmax: means over rows, then heads", methods, columns)


def accuracy_grid(methods: dict[str, Any]) -> Grid:
    """Accuracy without and, where it was done, after retraining, against the float model."""
    base = methods[FLOAT]["accuracy"]

    def without(record: dict[str, Any]) -> float:
        return float(record["accuracy"])

    def retrained(record: dict[str, Any]) -> float:
        return float(record["retrained"]["accuracy"])

    columns: list[Column] = []
    for name, score in (("without retraining", without), ("retrained", retrained)):
        if name == "retrained" and not any("retrained" in record for record in methods.values()):
            continue
        columns.append((name, _or_dash(lambda r, score=score: f"{score(r):.4f}")))
        columns.append(("points", _or_dash(lambda r, score=score: f"{100 * (score(r) - base):+.2f}")))
    columns.insert(0, ("KL, renormalised", _fidelity("kl_renormalised")))
    return _grid("Dev accuracy; points against the float model", methods, columns, with_float=True)


def cost_grid(methods: dict[str, Any]) -> Grid:
    """What each method declares for a row, and the time of its two forms."""
    lengths = {record["costs"]["k"] for record in methods.values() if "costs" in record}
    columns: list[Column] = [
        ("integers only", _cost("integer_only")),
        ("operations", _cost("operations")),
        ("divides", _cost("divides")),
        ("exponentials", _cost("exponentials")),
        ("table bytes", _cost("table_bytes")),
        ("output", _cost("output")),
        ("NumPy time", _ratio("numpy")),
        ("PyTorch time", _ratio("torch")),
    ]
    of = "/".join(str(k) for k in sorted(lengths))
    return _grid(f"Costs of a row of {of}, declared; time as a ratio to softmax", methods, columns)


def _or_dash(text: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    def safe(record: dict[str, Any]) -> str:
        try:
            return text(record)
        except KeyError:
            return "-"

    return safe


def _grid(
    title: str, methods: dict[str, Any], columns: Sequence[Column], *, with_float: bool = False
) -> Grid:
    lines = [
        (label, *(text(record) for _, text in columns))
        for label, record in methods.items()
        if label != FLOAT or with_float
    ]
    return Grid(title, ("method", *(name for name, _ in columns)), tuple(lines))


def grids(found: dict[str, Any]) -> list[Grid]:
    """All tables of a comparison."""
    methods = found["methods"]
    made = [fidelity_grid(methods), cost_grid(methods)]
    return [made[0], accuracy_grid(methods), made[1]] if FLOAT in methods else made


def write_markdown(found: dict[str, Any], path: Path) -> None:
    """All tables in one file."""
    _safetensors.replace(path, "\n".join(grid.markdown() for grid in grids(found)).encode())
