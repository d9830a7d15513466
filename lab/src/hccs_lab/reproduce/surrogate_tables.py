"""The tables of softmax replacements: distance from softmax, points without training, points retrained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hccs_lab.compare.entries import FLOAT
from hccs_lab.reproduce.surrogate_plan import (
    LABELS,
    PREFIX,
    PREFIX_RETRAINED,
)
from hccs_lab.reproduce.tables import NOTHING, Group, Record, at, markdown_table

REFUSED = "refused"

HEADINGS = {
    "kl": "KL",
    "kl_renormalised": "KL renorm.",
    "total_variation": "TV",
    "top1": "top-1",
    "rank_correlation": "rank corr.",
    "sum_error": "sum error",
    "sparsity": "zeros",
}
"""Of the measures of `hccs compare`."""


def distance(record: Record, label: str, measure: str = "kl_renormalised") -> float | None:
    """A measure of a method on held-back rows; None where it was not measured."""
    found: float | None = at(record, f"{PREFIX} {label}", "distances", measure)
    return found


def points(group: Group, label: str, prefix: str = PREFIX) -> float | None:
    """The mean over seeds of a method's points against float; None where it was not measured."""
    found = [p for r in group.records if (p := at(r, f"{prefix} {label}", "points")) is not None]
    return statistics.fmean(found) if found else None


def divergence(found: Sequence[Group]) -> str:
    """Renormalised KL on held-back rows."""

    def shown(g: Group, label: str) -> str:
        return _or_refused(g, f"{PREFIX} {label}", g.mean(4, lambda r: distance(r, label)))

    return _table(found, [[label, *(shown(g, label) for g in found)] for label in LABELS])


def without_training(found: Sequence[Group]) -> str:
    """Points against float in the float weights; in the first line the float model's accuracy."""
    return _table(found, [_floats(found), *_points(found, PREFIX, LABELS)])


def retrained(found: Sequence[Group]) -> str:
    """Points against float after the common recipe, of what was retrained; `float` had as much of it."""

    def tried(g: Group, label: str) -> bool:
        return any(f"{PREFIX_RETRAINED} {label}" in record for record in g.records)

    labels = [label for label in (FLOAT, *LABELS) if any(tried(g, label) for g in found)]
    found = [g for g in found if any(tried(g, label) for label in labels)]
    return _table(found, _points(found, PREFIX_RETRAINED, labels))


def fidelity(found: Sequence[Group]) -> str:
    """Every measure, the mean over models and tasks."""

    def shown(label: str, measure: str) -> str:
        own = [
            statistics.fmean(values)
            for g in found
            if (values := [v for r in g.records if (v := distance(r, label, measure)) is not None])
        ]
        return f"{statistics.fmean(own):.4f}" if own else NOTHING

    rows = [[label, *(shown(label, measure) for measure in HEADINGS)] for label in LABELS]
    return markdown_table(["method", *HEADINGS.values()], rows, whole=True)


def _floats(found: Sequence[Group]) -> list[str]:
    return [FLOAT, *(g.accuracy(FLOAT) for g in found)]


def _points(found: Sequence[Group], prefix: str, labels: Sequence[str]) -> list[list[str]]:
    stages = {label: f"{prefix} {label}" for label in labels}
    return [
        [label, *(_or_refused(g, stage, g.points(stage)) for g in found)] for label, stage in stages.items()
    ]


def _or_refused(g: Group, stage: str, shown: str) -> str:
    """What is shown, or that the method cannot serve this model's logits."""
    refused = any(at(record, stage, REFUSED) for record in g.records)
    return REFUSED if shown == NOTHING and refused else shown


def _table(found: Sequence[Group], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(["method", *(g.name for g in found)], rows, whole=True)


TABLES: dict[str, Callable[[Sequence[Group]], str]] = {
    "surrogates, KL": divergence,
    "surrogates, without training": without_training,
    "surrogates, retrained": retrained,
    "surrogates, fidelity": fidelity,
}


def tables(found: Sequence[Group]) -> dict[str, str]:
    """All of them, of the models and tasks on which any method was measured; nothing where none was."""
    measured = [g for g in found if any(stage.startswith(PREFIX) for r in g.records for stage in r)]
    return {name: table(measured) for name, table in TABLES.items()} if measured else {}
