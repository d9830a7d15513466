"""`hccs where RUN`: where the integer model of a run loses, as numbers, a table and a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hccs.nn
from hccs import _figures
from hccs._files.atomic import replacing
from hccs.conversion.models import best_device
from hccs.conversion.runs.converted import ConvertedRun
from hccs.conversion.whole import load_whole
from hccs.nn.lowering.accounting import Account, value_in_words

NUMBERS, FIGURE = "where.json", "where.png"
"""The files of a run's folder."""

SHOWN = 12
"""Rows of a table, and bars of a panel: the worst."""


def where(run: str | Path, file: str | None = None, examples: int = 512) -> Account:
    """Account for the integer model of a finished run, on its dev set or another file, and write it down.

    The float model it is compared with is the delivered one: its weights, HCCS, and floats for the rest.
    """
    folder = Path(run)
    finished = ConvertedRun(folder)
    whole = load_whole(folder)  # before anything is computed
    dev = finished.examples(file)
    chosen = dev.by_length(1)[:: max(1, len(dev) // examples)][:examples]
    batches = [
        dev.__getitems__([index for row in chosen[start : start + 64] for index in row])
        for start in range(0, len(chosen), 64)
    ]
    model = finished.converted.model.to(best_device())
    found = hccs.nn.where_accuracy_goes(model, finished.table, whole, batches, pixels=dev.pixels)
    write(found, folder)
    return found


def write(found: Account, folder: Path) -> None:
    """The numbers as JSON and the figure into a folder."""
    with replacing(folder / NUMBERS) as file:
        file.write(json.dumps(_finite(found.as_dict()), indent=1).encode())
    figure(found, folder / FIGURE)


def _finite(value: Any) -> Any:
    """JSON has no infinity: a value without noise has None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def operator_rows(found: Account) -> list[list[str]]:
    """Everything, each kind in all layers, then the dearest single operators: cells of a table."""
    everywhere = [found.whole, *sorted(found.kinds, key=lambda c: c.decibels)]
    single = [c for c in found.worst_operators if c.operator != "embeddings"]  # among the kinds already
    return [
        [
            cost.operator,
            "all" if everywhere_too else "" if cost.layer is None else str(cost.layer),
            f"{100 * cost.agreement:.1f}",
            f"{cost.kl:.5f}",
            f"{cost.decibels:.1f}",
            *([] if found.accuracy is None else [f"{100 * ((cost.accuracy or 0) - found.accuracy):+.2f}"]),
        ]
        for costs, everywhere_too in ((everywhere, True), (single[:SHOWN], False))
        for cost in costs
    ]


def value_rows(found: Account) -> list[list[str]]:
    """The noisiest values: cells of a table."""
    rows = []
    for noise in found.worst_values[:SHOWN]:
        words, layer = value_in_words(noise.name)
        rows.append([words, "" if layer is None else str(layer), noise.name, f"{noise.decibels:.1f}"])
    return rows


def figure(found: Account, path: Path) -> None:
    """Two panels, worst first: values by their noise, operators by what they alone cost the logits."""
    values = [(_label(*value_in_words(n.name)), n.decibels) for n in found.worst_values[:SHOWN]]
    operators = [(_label(c.operator, c.layer), c.decibels) for c in found.worst_operators[:SHOWN]]
    drawn = _figures.new(10, 0.5 + 0.28 * max(len(values), len(operators)))
    left, right = drawn.subplots(1, 2)
    _bars(left, values, "noisiest values: signal to noise, dB", "tab:blue")
    _bars(right, operators, "each operator alone: signal to noise of the logits, dB", "tab:orange")
    right.axvline(found.whole.decibels, color="black", linewidth=1, linestyle="--")
    right.annotate(
        f"all together: {found.whole.decibels:.1f} dB",
        (found.whole.decibels, -0.75),
        fontsize=8,
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
    )
    _figures.save(drawn, path)


def _label(words: str, layer: int | None) -> str:
    return words if layer is None else f"{layer}: {words}"


def _bars(axes: Any, rows: Sequence[tuple[str, float]], title: str, colour: str) -> None:
    finite = [(label, value) for label, value in rows if not math.isinf(value)]
    axes.barh(range(len(finite)), [value for _, value in finite], color=colour, height=0.7)
    for place, (_, value) in enumerate(finite):
        axes.text(value, place, f" {value:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(finite)), [label for label, _ in finite], fontsize=8)
    axes.set_ylim(len(finite) - 0.4, -1.1)
    axes.set_xlim(0, 1.12 * max((value for _, value in finite), default=1))
    axes.set_title(title, fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
