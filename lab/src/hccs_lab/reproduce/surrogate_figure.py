"""The figure of softmax replacements: distance from softmax beside accuracy. Needs matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hccs import _figures
from hccs_lab.compare.figures import LEAST_KL, colour
from hccs_lab.reproduce.surrogate_plan import LABELS, PREFIX_RETRAINED
from hccs_lab.reproduce.surrogate_tables import distance, points
from hccs_lab.reproduce.tables import Group

MARKS = "os^Dvp"
"""One for each model and task."""


def draw(found: Sequence[Group], path: Path) -> bool:
    """A line for every method, the closest to softmax first: its KL, points without and after training.

    Each model and task has a mark, the mean over its seeds. Returns whether there was anything to draw.
    """
    divergences = {label: [_divergence(g, label) for g in found] for label in LABELS}
    known = {
        label: statistics.fmean(k for k in of if k is not None)
        for label, of in divergences.items()
        if any(k is not None for k in of)
    }
    if not known:
        return False
    order = sorted(known, key=lambda label: known[label])
    before = {label: [points(g, label) for g in found] for label in order}
    after = {label: [points(g, label, PREFIX_RETRAINED) for g in found] for label in order}
    panels = [
        (f"KL(softmax || method), renormalised, nats; at least {LEAST_KL:g}", divergences),
        ("points against float, without training", before),
        ("points against float, retrained", after),
    ]
    panels = [(title, of) for title, of in panels if any(v is not None for vs in of.values() for v in vs)]
    figure = _figures.new(3.9 * len(panels), 1.4 + 0.19 * len(order))
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, (title, of) in zip(places, panels, strict=True):
        _panel(place, found, [of[label] for label in order], of is divergences)
        place.set_xlabel(title, fontsize=7)
    first = places[0]
    first.legend(fontsize=6)
    first.set_yticks(range(len(order)), order)
    for name in first.get_yticklabels():
        name.set_color(colour(name.get_text()))
    first.invert_yaxis()
    _figures.save(figure, path)
    return True


def _panel(
    place: Any, found: Sequence[Group], lines: Sequence[Sequence[float | None]], of_divergence: bool
) -> None:
    """A mark of every model and task on each line that has a value for it."""
    for at, group in enumerate(found):
        own = [(value, line) for line, values in enumerate(lines) if (value := values[at]) is not None]
        shown = [max(value, LEAST_KL) if of_divergence else value for value, _ in own]
        mark = MARKS[at % len(MARKS)]
        place.plot(shown, [line for _, line in own], mark, markersize=3.5, alpha=0.8, label=group.name)
    if of_divergence:
        place.set_xscale("log")
    else:
        place.axvline(0, color="black", linewidth=0.8, linestyle="--")
        place.set_xscale("symlog", linthresh=1)  # most methods lie within a point of the float model
        place.xaxis.set_major_formatter("{x:g}")
    place.grid(axis="y", linewidth=0.3)
    place.margins(y=0.02)
    place.tick_params(labelsize=7)


def _divergence(group: Group, label: str) -> float | None:
    found = [kl for record in group.records if (kl := distance(record, label)) is not None]
    return statistics.fmean(found) if found else None
