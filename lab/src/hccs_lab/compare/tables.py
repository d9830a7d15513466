"""The comparison as tables: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs_lab.compare.entries import FLOAT


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
        # Adding 0.0 takes the sign from what rounds to -0.
        return f"{round(record['fidelity'][name], digits) + 0.0:.{digits}f}" if "fidelity" in record else "-"

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
        ("KL renorm.", _fidelity("kl_renormalised")),
        ("TV", _fidelity("total_variation")),
        ("top-1", _fidelity("top1")),
        ("rank corr.", _fidelity("rank_correlation")),
        ("sum error", _fidelity("sum_error")),
        ("zeros", _fidelity("sparsity")),
    ]
    return _grid("Fidelity to softmax: means over rows, then heads", methods, columns)


def accuracy_grid(methods: dict[str, Any]) -> Grid:
    """Accuracy without and, where it was done, after retraining, against the float model."""
    base = methods[FLOAT]["accuracy"]

    def retrained(record: dict[str, Any]) -> float | None:
        return record["retrained"]["accuracy"] if "retrained" in record else None

    columns: list[Column] = [("KL renorm.", _fidelity("kl_renormalised"))]
    columns += _scores("without retraining", lambda record: record.get("accuracy"), base)
    if any("retrained" in record for record in methods.values()):
        columns += _scores("retrained", retrained, base)
    return _grid("Dev accuracy; points against the float model", methods, columns, with_float=True)


def cost_grid(methods: dict[str, Any]) -> Grid:
    """What each method declares for a row, and the time of its two forms."""
    lengths = {record["costs"]["k"] for record in methods.values() if "costs" in record}
    columns: list[Column] = [
        ("integers", _cost("integer_only")),
        ("operations", _cost("operations")),
        ("divides", _cost("divides")),
        ("exp", _cost("exponentials")),
        ("table bytes", _cost("table_bytes")),
        ("output", _cost("output")),
        ("NumPy", _ratio("numpy")),
        ("PyTorch", _ratio("torch")),
    ]
    of = "/".join(str(k) for k in sorted(lengths))
    return _grid(f"Costs of a row of {of}, declared; time as a ratio to softmax", methods, columns)


def _scores(name: str, score: Callable[[dict[str, Any]], float | None], base: float) -> list[Column]:
    def absolute(record: dict[str, Any]) -> str:
        found = score(record)
        return "-" if found is None else f"{found:.4f}"

    def points(record: dict[str, Any]) -> str:
        found = score(record)
        return "-" if found is None else f"{100 * (found - base):+.2f}"

    return [(name, absolute), ("points", points)]


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
    atomic.replace(path, "\n".join(grid.markdown() for grid in grids(found)).encode())
