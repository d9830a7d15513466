"""The reproduction's tables: means over seeds with errors and spreads, beside the paper's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs.conversion.runs.record import StageRecord
from hccs.errors import FileError
from hccs.numbers.modes import Mode
from hccs_lab.reproduce.plan import ENCODERS

PAPER = {
    ("sst2", "tiny"): (0.825, 0.619, 0.822),
    ("sst2", "small"): (0.893, 0.766, 0.878),
    ("mnli", "tiny"): (0.653, 0.480, 0.639),
    ("mnli", "small"): (0.742, 0.602, 0.723),
}
"""Float, without retraining, retrained."""

PAPER_GRANULARITY = {
    ("sst2", "tiny"): (0.817, 0.819, 0.822),
    ("sst2", "small"): (0.834, 0.842, 0.878),
    ("mnli", "tiny"): (0.416, 0.552, 0.639),
    ("mnli", "small"): (0.545, 0.602, 0.723),
}
"""Retrained: global, per layer, per head."""

TASKS = {"sst2": "SST-2", "mnli": "MNLI"}
GROUPS = [(task, model) for task in TASKS for model in ("tiny", "small", "minilm")]
NOTHING = "-"

Record = dict[str, Any]
Pick = Callable[[Record], Any]


@dataclass(frozen=True)
class Group:
    """The records of one task and model, one per seed."""

    task: str
    model: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """For the first column."""
        return f"{ENCODERS[self.model].title}, {TASKS[self.task]}"

    def points(self, *path: str) -> str:
        """The difference from the float model at a place in the records."""
        found = [m for r in self.records if (m := at(r, *path)) and "points" in m]
        return spread([m["points"] for m in found], [m["points_error"] for m in found], 2, sign=True)

    def accuracy(self, *path: str) -> str:
        """The accuracy at a place in the records."""
        found = [m for r in self.records if (m := at(r, *path)) and "accuracy" in m]
        return spread([m["accuracy"] for m in found], [m["error"] for m in found], 4)

    def mean(self, digits: int, pick: Pick) -> str:
        """The mean over seeds of a number that may be missing, with its spread."""
        return spread([v for r in self.records if (v := pick(r)) is not None], [], digits)


def at(record: Record, *path: str) -> Any:
    """What lies at a place in a record; None where a stage is not done."""
    found: Any = record
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def spread(values: Sequence[float], errors: Sequence[float], digits: int, sign: bool = False) -> str:
    """The mean over seeds ± the standard error over the examples, and in brackets the seeds' deviation.

    >>> spread([0.81, 0.83], [0.01, 0.01], 2)
    '0.82 ± 0.01 (0.01)'
    """
    if not values:
        return NOTHING
    shown = format(statistics.fmean(values), f"{'+' if sign else ''}.{digits}f")
    if errors:
        shown += f" ± {statistics.fmean(errors):.{digits}f}"
    if len(values) > 1:
        shown += f" ({statistics.stdev(values):.{digits}f})"
    return shown


def load(out: Path) -> dict[str, Record]:
    """The stages of every experiment in a results folder, by its name."""
    found = {path.stem: StageRecord(path).stages for path in sorted((out / "cells").glob("*.json"))}
    if not found:
        raise FileError(f"results in {out / 'cells'}", "none", "Run hccs reproduce run first.")
    return found


def groups(cells: dict[str, Record]) -> list[Group]:
    """The experiments whose float model is there, by task and model."""
    found = []
    for task, model in GROUPS:
        records = tuple(r for n, r in cells.items() if n.startswith(f"{model}-{task}-") and "float" in r)
        if records:
            found.append(Group(task, model, records))
    return found


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], whole: bool = False) -> str:
    """Rows under their headings; columns that nothing is known of are left out, unless all are wanted."""
    listed = [list(row) for row in rows]
    kept = whole or not listed
    shown = [i for i in range(len(head)) if kept or any(row[i] != NOTHING for row in listed)]
    lines = [[head[i] for i in shown], ["---"] * len(shown), *([row[i] for i in shown] for row in listed)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracy(found: Sequence[Group]) -> str:
    """Float, then what each way loses or gains, with the paper's numbers beside."""
    head = [
        "model, task",
        "seeds",
        "float",
        "one line, no training",
        "two lines, no training",
        "two lines, no labels, as delivered",
        "one line, retrained",
        "two lines, retrained",
        "all integers, no training",
        "all integers, trained",
        "paper: float / without / retrained",
    ]
    return markdown_table(
        head,
        (
            [
                g.name,
                str(len(g.records)),
                g.accuracy("float"),
                g.points("one line", "one line", "modes", "i16_div"),
                g.points("two lines", "two lines", "modes", "i16_div"),
                g.points("mended", "two lines", "delivered"),
                g.points("retrained"),
                g.points("retrained two lines"),
                g.points("whole mended"),
                g.points("whole trained"),
                _paper(PAPER, g),
            ]
            for g in found
        ),
    )


def without_labels(found: Sequence[Group]) -> str:
    """Every way that needs no labels, in i16_div: points against float."""
    ways = {
        "one line": ("one line", "one line", "modes", "i16_div"),
        "one line, refined": ("refined", "one line, i16_div"),
        "one line, mended": ("mended", "one line", "mended"),
        "one line, mended, refined": ("mended", "one line", "mended, refined"),
        "one line, wide sums": ("wide", "one line, wide", "modes", "i16_div"),
        "two lines": ("two lines", "two lines", "modes", "i16_div"),
        "two lines, uint8 scores": ("two lines", "two lines, uint8", "modes", "i16_div"),
        "two lines, refined": ("refined", "two lines, i16_div"),
        "two lines, mended": ("mended", "two lines", "mended"),
        "two lines, mended, refined": ("mended", "two lines", "mended, refined"),
        "one line, trained without labels": ("unlabelled", "one line"),
        "two lines, trained without labels": ("unlabelled", "two lines"),
    }
    return markdown_table(
        ["way", *(g.name for g in found)],
        ([way, *(g.points(*path) for g in found)] for way, path in ways.items()),
    )


def granularity(found: Sequence[Group]) -> str:
    """One line for all heads, per layer and per head: without training, and retrained."""
    head = ["model, task"]
    head += [f"no training: {name}" for name in ("global", "layer", "head")]
    head += [f"retrained: {name}" for name in ("global", "layer", "head")]
    return markdown_table(
        [*head, "paper, retrained: global / layer / head"],
        (
            [
                g.name,
                g.points("one line", "one line, global", "modes", "i16_div"),
                g.points("one line", "one line, layer", "modes", "i16_div"),
                g.points("one line", "one line", "modes", "i16_div"),
                g.points("retrained global"),
                g.points("retrained layer"),
                g.points("retrained"),
                _paper(PAPER_GRANULARITY, g),
            ]
            for g in found
        ),
    )


def modes(found: Sequence[Group]) -> str:
    """Every form in every mode: points against float."""
    forms = {
        "one line": ("one line", "one line", "modes"),
        "two lines": ("two lines", "two lines", "modes"),
        "two lines, uint8 scores": ("two lines", "two lines, uint8", "modes"),
        "one line, retrained in i16_div": ("retrained", "modes"),
        "two lines, retrained in i16_div": ("retrained two lines", "modes"),
    }
    return markdown_table(
        ["model, task", "form", *(mode.value for mode in Mode), "refined for its mode, no division"],
        (
            [g.name, form, *(g.points(*path, mode.value) for mode in Mode), _no_division(g, form)]
            for g in found
            for form, path in forms.items()
        ),
    )


def _no_division(g: Group, form: str) -> str:
    name = form.replace(" scores", "")
    kept = [f"{name}, {mode}" for mode in ("u8_lin", "u8_clb")]
    return next((shown for key in kept if (shown := g.points("refined", key)) != NOTHING), NOTHING)


def whole(found: Sequence[Group]) -> str:
    """All in integers: without training from one line and from two, and trained."""

    def equal(record: Record) -> float | None:
        shares = [at(record, stage, "equal") for stage in _WHOLE]
        return min((100 * share for share in shares if share is not None), default=None)

    return markdown_table(
        [
            "model, task",
            "float",
            "one line, floats around it",
            "all integers, one line",
            "two lines, floats around them",
            "all integers, two lines",
            "all integers, two lines, mended",
            "all integers, one line, trained",
            "answers equal to the training model's, %",
        ],
        (
            [
                g.name,
                g.accuracy("float"),
                g.points("whole", "attention"),
                g.points("whole"),
                g.points("whole two lines", "attention"),
                g.points("whole two lines"),
                g.points("whole mended"),
                g.points("whole trained"),
                g.mean(1, equal),
            ]
            for g in found
        ),
    )


_WHOLE = ("whole", "whole two lines", "whole trained")


def fidelity(found: Sequence[Group]) -> str:
    """Mean KL over heads on held-back sentences, by form, and after retraining."""

    def mean(*path: str) -> Pick:
        return lambda record: None if (kl := at(record, *path)) is None else statistics.fmean(kl)

    def ratio(record: Record) -> float | None:
        one, two = (mean(form, form, "kl")(record) for form in ("one line", "two lines"))
        return None if one is None or two is None else two / one

    return markdown_table(
        [
            "model, task",
            "one line",
            "one line, wide sums",
            "two lines",
            "two lines, uint8 scores",
            "two lines over one",
            "one line, worst head",
            "two lines, worst head",
            "one line, after retraining",
        ],
        (
            [
                g.name,
                g.mean(4, mean("one line", "one line", "kl")),
                g.mean(4, mean("wide", "one line, wide", "kl")),
                g.mean(4, mean("two lines", "two lines", "kl")),
                g.mean(4, mean("two lines", "two lines, uint8", "kl")),
                g.mean(2, ratio),
                g.mean(3, lambda r: max(at(r, "one line", "one line", "kl") or [], default=None)),
                g.mean(3, lambda r: max(at(r, "two lines", "two lines", "kl") or [], default=None)),
                g.mean(4, mean("retrained", "kl_after")),
            ]
            for g in found
        ),
    )


def budget(found: Sequence[Group]) -> str:
    """What the budget of retraining alone is worth: the float model retrained just as long."""
    return markdown_table(
        ["model, task", "one line, retrained", "two lines, retrained", "float, retrained as long"],
        (
            [g.name, g.points("retrained"), g.points("retrained two lines"), g.points("retrained float")]
            for g in found
        ),
    )


def _paper(numbers: Mapping[tuple[str, str], tuple[float, ...]], g: Group) -> str:
    own = numbers.get((g.task, g.model))
    return NOTHING if own is None else " / ".join(f"{value:.3f}" for value in own)


TABLES: dict[str, Callable[[Sequence[Group]], str]] = {
    "accuracy": accuracy,
    "without labels": without_labels,
    "granularity": granularity,
    "modes": modes,
    "whole integers": whole,
    "fidelity": fidelity,
    "budget": budget,
}
