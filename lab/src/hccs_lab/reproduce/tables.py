"""The reproduction's tables: means over seeds with errors and spreads, beside the paper's numbers."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.runs.record import StageRecord
from hccs.errors import FileError
from hccs.numbers.modes import Mode
from hccs_lab.compare.entries import FLOAT
from hccs_lab.compare.measures import HEADINGS
from hccs_lab.reproduce.plan import ENCODERS, LABELS, PREFIX, PREFIX_RETRAINED

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
NOTHING, REFUSED = "-", "refused"
BEGIN, END = "<!-- table: {name} -->", "<!-- end of table -->"
_BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Record = dict[str, Any]


def at(record: Any, *path: str) -> Any:
    """What lies at a place in a record; None where a stage is not done."""
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


@dataclass(frozen=True)
class Group:
    """The records of one task and model, one per seed."""

    task: str
    model: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return f"{ENCODERS[self.model].title}, {TASKS[self.task]}"

    def known(self, *path: str) -> list[Any]:
        """What the records that have this place hold there."""
        return [found for r in self.records if (found := at(r, *path)) is not None]

    def points(self, *path: str) -> str:
        """The difference from the float model at a place in the records."""
        found = [m for m in self.known(*path) if "points" in m]
        return spread([m["points"] for m in found], [m["points_error"] for m in found], 2, sign=True)

    def accuracy(self, *path: str) -> str:
        found = [m for m in self.known(*path) if "accuracy" in m]
        return spread([m["accuracy"] for m in found], [m["error"] for m in found], 4)

    def mean(self, digits: int, pick: Callable[[Record], float | None]) -> str:
        """The mean over seeds of a number that may be missing, with its spread."""
        return spread([v for r in self.records if (v := pick(r)) is not None], [], digits)

    def mean_at(self, *path: str) -> float | None:
        """The mean over seeds of the number at a place in the records; None where there is none."""
        found = self.known(*path)
        return statistics.fmean(found) if found else None

    def paper(self, numbers: Mapping[tuple[str, str], tuple[float, ...]]) -> str:
        own = numbers.get((self.task, self.model))
        return NOTHING if own is None else " / ".join(f"{value:.3f}" for value in own)


Column = Callable[[Group], str]


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
    found = read_cells(out)
    if not found:
        raise FileError(f"results in {out / 'cells'}", "none", "Run hccs reproduce run first.")
    return found


def read_cells(folder: Path) -> dict[str, Record]:
    return {path.stem: StageRecord(path).stages for path in sorted((folder / "cells").glob("*.json"))}


def groups(cells: dict[str, Record]) -> list[Group]:
    """The experiments whose float model is there, by task and model."""
    found = []
    for task, model in GROUPS:
        records = tuple(r for n, r in cells.items() if n.startswith(f"{model}-{task}-") and "float" in r)
        if records:
            found.append(Group(task, model, records))
    return found


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], complete: bool = False) -> str:
    """Rows under their headings; columns without any value are left out, unless all are wanted."""
    listed = [list(row) for row in rows]
    kept = complete or not listed
    shown = [i for i in range(len(head)) if kept or any(row[i] != NOTHING for row in listed)]
    lines = [[head[i] for i in shown], ["---"] * len(shown), *([row[i] for i in shown] for row in listed)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _points(*path: str) -> Column:
    return lambda g: g.points(*path)


def _form(form: str, *path: str) -> Column:
    """A form without training, in i16_div."""
    return _points(*(path or (form,)), form, "modes", "i16_div")


def _mean_kl(*path: str) -> Callable[[Record], float | None]:
    return lambda record: None if (kl := at(record, *path)) is None else statistics.fmean(kl)


def _by_group(columns: Mapping[str, Column], found: Sequence[Group]) -> str:
    rows = ([g.name, *(column(g) for column in columns.values())] for g in found)
    return markdown_table(["model, task", *columns], rows)


ACCURACY: dict[str, Column] = {
    "seeds": lambda g: str(len(g.records)),
    "float": lambda g: g.accuracy("float"),
    "one line, no training": _form("one line"),
    "two lines, no training": _form("two lines"),
    "two lines, no labels, as delivered": _points("mended", "two lines", "delivered"),
    "one line, retrained": _points("retrained"),
    "two lines, retrained": _points("retrained two lines"),
    "all integers, no training": _points("whole mended"),
    "all integers, trained": _points("whole trained"),
    "paper: float / without / retrained": lambda g: g.paper(PAPER),
}
"""Float, then what each way loses or gains, with the paper's numbers beside."""

WITHOUT_LABELS = {
    "one line": _form("one line"),
    "one line, refined": _points("refined", "one line, i16_div"),
    "one line, corrected": _points("mended", "one line", "mended"),
    "one line, corrected, refined": _points("mended", "one line", "mended, refined"),
    "one line, wide sums": _form("one line, wide", "wide"),
    "two lines": _form("two lines"),
    "two lines, uint8 scores": _form("two lines, uint8", "two lines"),
    "two lines, refined": _points("refined", "two lines, i16_div"),
    "two lines, corrected": _points("mended", "two lines", "mended"),
    "two lines, corrected, refined": _points("mended", "two lines", "mended, refined"),
    "one line, trained without labels": _points("unlabelled", "one line"),
    "two lines, trained without labels": _points("unlabelled", "two lines"),
}
"""Every way that needs no labels, in i16_div: points against float."""

GRANULARITY: dict[str, Column] = {
    "no training: global": _form("one line, global", "one line"),
    "no training: layer": _form("one line, layer", "one line"),
    "no training: head": _form("one line"),
    "retrained: global": _points("retrained global"),
    "retrained: layer": _points("retrained layer"),
    "retrained: head": _points("retrained"),
    "paper, retrained: global / layer / head": lambda g: g.paper(PAPER_GRANULARITY),
}
"""One line for all heads, per layer and per head."""

ALL_INTEGERS: dict[str, Column] = {
    "float": lambda g: g.accuracy("float"),
    "one line, floats around it": _points("whole", "attention"),
    "all integers, one line": _points("whole"),
    "two lines, floats around them": _points("whole two lines", "attention"),
    "all integers, two lines": _points("whole two lines"),
    "all integers, two lines, corrected": _points("whole mended"),
    "all integers, one line, trained": _points("whole trained"),
    "answers equal to the training model's, %": lambda g: g.mean(1, _equal),
}

FIDELITY: dict[str, Column] = {
    "one line": lambda g: g.mean(4, _mean_kl("one line", "one line", "kl")),
    "one line, wide sums": lambda g: g.mean(4, _mean_kl("wide", "one line, wide", "kl")),
    "two lines": lambda g: g.mean(4, _mean_kl("two lines", "two lines", "kl")),
    "two lines, uint8 scores": lambda g: g.mean(4, _mean_kl("two lines", "two lines, uint8", "kl")),
    "two lines over one": lambda g: g.mean(2, _two_over_one),
    "one line, worst head": lambda g: g.mean(3, partial(_worst, "one line")),
    "two lines, worst head": lambda g: g.mean(3, partial(_worst, "two lines")),
    "one line, after retraining": lambda g: g.mean(4, _mean_kl("retrained", "kl_after")),
}
"""Mean KL over heads on held-back sentences."""

BUDGET = {
    "one line, retrained": _points("retrained"),
    "two lines, retrained": _points("retrained two lines"),
    "float, retrained as long": _points("retrained float"),
}
"""What the budget of retraining alone is worth."""


def _equal(record: Record) -> float | None:
    shares = [at(record, stage, "equal") for stage in ("whole", "whole two lines", "whole trained")]
    return min((100 * share for share in shares if share is not None), default=None)


def _two_over_one(record: Record) -> float | None:
    one, two = (_mean_kl(form, form, "kl")(record) for form in ("one line", "two lines"))
    return None if one is None or two is None else two / one


def _worst(form: str, record: Record) -> float | None:
    return max(at(record, form, form, "kl") or [], default=None)


def without_labels(found: Sequence[Group]) -> str:
    rows = ([way, *(column(g) for g in found)] for way, column in WITHOUT_LABELS.items())
    return markdown_table(["way", *(g.name for g in found)], rows)


def modes(found: Sequence[Group]) -> str:
    """Every form in every mode: points against float."""
    forms = {
        "one line": ("one line", "one line", "modes"),
        "two lines": ("two lines", "two lines", "modes"),
        "two lines, uint8 scores": ("two lines", "two lines, uint8", "modes"),
        "one line, retrained in i16_div": ("retrained", "modes"),
        "two lines, retrained in i16_div": ("retrained two lines", "modes"),
    }

    def no_division(g: Group, form: str) -> str:
        kept = [f"{form.replace(' scores', '')}, {mode}" for mode in ("u8_lin", "u8_clb")]
        return next((shown for key in kept if (shown := g.points("refined", key)) != NOTHING), NOTHING)

    return markdown_table(
        ["model, task", "form", *(mode.value for mode in Mode), "refined for its mode, no division"],
        (
            [g.name, form, *(g.points(*path, mode.value) for mode in Mode), no_division(g, form)]
            for g in found
            for form, path in forms.items()
        ),
    )


TABLES: dict[str, Callable[[Sequence[Group]], str]] = {
    "accuracy": partial(_by_group, ACCURACY),
    "without labels": without_labels,
    "granularity": partial(_by_group, GRANULARITY),
    "modes": modes,
    "whole integers": partial(_by_group, ALL_INTEGERS),
    "fidelity": partial(_by_group, FIDELITY),
    "budget": partial(_by_group, BUDGET),
}


def _by_label(found: Sequence[Group], labels: Iterable[str], cell: Callable[[Group, str], str]) -> str:
    """A row for every softmax replacement; a method that cannot serve a model's logits is `refused`."""
    rows = ([label, *(cell(g, label) for g in found)] for label in labels)
    return markdown_table(["method", *(g.name for g in found)], rows, complete=True)


def _or_refused(g: Group, stage: str, shown: str) -> str:
    return REFUSED if shown == NOTHING and any(g.known(stage, REFUSED)) else shown


def _label_points(prefix: str, g: Group, label: str) -> str:
    """Points against float; for the float model itself without training, its accuracy."""
    if prefix == PREFIX and label == FLOAT:
        return g.accuracy(FLOAT)
    return _or_refused(g, f"{prefix} {label}", g.points(f"{prefix} {label}"))


def _label_divergence(g: Group, label: str) -> str:
    found = g.known(f"{PREFIX} {label}", "distances", "kl_renormalised")
    return _or_refused(g, f"{PREFIX} {label}", spread(found, [], 4))


def _surrogates_retrained(found: Sequence[Group]) -> str:
    """The methods that were retrained, after the common recipe; `float` had as much of it."""

    def tried(g: Group, label: str) -> bool:
        return bool(g.known(f"{PREFIX_RETRAINED} {label}"))

    labels = [label for label in (FLOAT, *LABELS) if any(tried(g, label) for g in found)]
    found = [g for g in found if any(tried(g, label) for label in labels)]
    return _by_label(found, labels, partial(_label_points, PREFIX_RETRAINED))


def _surrogates_fidelity(found: Sequence[Group]) -> str:
    """Every measure of distance from softmax, the mean over models and tasks."""

    def shown(label: str, measure: str) -> str:
        means = [g.mean_at(f"{PREFIX} {label}", "distances", measure) for g in found]
        known = [mean for mean in means if mean is not None]
        return f"{statistics.fmean(known):.4f}" if known else NOTHING

    rows = [[label, *(shown(label, measure) for measure in HEADINGS)] for label in LABELS]
    return markdown_table(["method", *HEADINGS.values()], rows, complete=True)


SURROGATE_TABLES: dict[str, Callable[[Sequence[Group]], str]] = {
    "surrogates, KL": lambda found: _by_label(found, LABELS, _label_divergence),
    "surrogates, without training": lambda found: _by_label(
        found, (FLOAT, *LABELS), partial(_label_points, PREFIX)
    ),
    "surrogates, retrained": _surrogates_retrained,
    "surrogates, fidelity": _surrogates_fidelity,
}

LONG_FORMS = {
    "one line": "one line",
    "one line, wide": "one line, wide sums",
    "two lines": "two lines",
    "two lines, uint8": "two lines, uint8 scores",
}


def long_tables(cells: dict[str, Record]) -> dict[str, str]:
    """Points against float and KL of long rows, by model and n."""
    points: list[list[str]] = []
    divergences: list[list[str]] = []
    for model in ("small", "minilm"):
        records = [record for name, record in cells.items() if name.startswith(f"{model}-")]
        for n in sorted({int(n) for record in records for n in record if n.isdigit()}):
            g = Group("sst2", model, tuple(r[str(n)] for r in records if str(n) in r))
            first = [ENCODERS[model].title, str(n), str(len(g.records))]
            points.append([*first, g.accuracy(), *(g.points(form) for form in LONG_FORMS)])
            divergences.append([*first, *(g.mean(4, _mean_kl(form, "kl")) for form in LONG_FORMS)])
    if not points:
        return {}
    head = ["model", "n", "seeds"]
    return {
        "long rows": markdown_table([*head, "float", *LONG_FORMS.values()], points),
        "long rows, KL": markdown_table([*head, *LONG_FORMS.values()], divergences),
    }


def every_table(cells: dict[str, Record], long: dict[str, Record]) -> dict[str, str]:
    """The tables that results allow, by name; those of softmax replacements where any was measured."""
    found = groups(cells)
    made = {name: table(found) for name, table in TABLES.items()} if found else {}
    measured = [g for g in found if any(stage.startswith(PREFIX) for r in g.records for stage in r)]
    if measured:
        made |= {name: table(measured) for name, table in SURROGATE_TABLES.items()}
    return made | long_tables(long)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """A page with every marked block that a table is known for replaced by it; other blocks stay.

    >>> filled("<!-- table: a -->\\nold\\n<!-- end of table -->", {"a": "| new |"})
    '<!-- table: a -->\\n| new |\\n<!-- end of table -->'
    """

    def block(match: re.Match[str]) -> str:
        table = tables.get(match["name"])
        return match[0] if table is None else f"{match[1]}{table}\n{match[3]}"

    return _BLOCK.sub(block, page)


def fill(path: Path, tables: Mapping[str, str]) -> list[str]:
    """Replace the marked blocks of a page; returns the names of those replaced."""
    try:
        page = path.read_text()
    except OSError as error:
        raise FileError(f"{path} to be a page", error.strerror or str(error), "Check --page.") from error
    names = [match["name"] for match in _BLOCK.finditer(page)]
    if not names:
        raise FileError(
            f"marks such as {BEGIN.format(name='accuracy')} and {END} in {path}", "none", "Check --page."
        )
    atomic.replace(path, filled(page, tables).encode())
    return [name for name in names if name in tables]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """All results in one file; what only figures need is left out."""
    atomic.replace(path, (json.dumps(_without_curves(content), indent=1) + "\n").encode())


def _without_curves(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _without_curves(value) for key, value in content.items() if key != "fidelity"}
    if isinstance(content, list) and content and all(isinstance(value, float) for value in content):
        return [round(value, 6) for value in content]
    return content
