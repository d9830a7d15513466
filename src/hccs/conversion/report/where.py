"""`hccs where RUN`: where the integer model of a run loses, as numbers, tables and pictures."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hccs.nn
from hccs import _figures
from hccs._html.charts import bar
from hccs._html.elements import Markup, tag
from hccs.conversion.converted import Converted
from hccs.conversion.models import best_device
from hccs.conversion.report.page import boxed, command, paragraph, signed
from hccs.conversion.runs.record import read_json, typed, write_json
from hccs.nn.lowering.accounting import Account, Cost, value_in_words

NUMBERS, FIGURE = "where.json", "where.png"
"""The files of a run's folder."""

SHOWN = 12
"""Rows of a table, and bars of a panel: the worst."""


def where(run: str | Path, file: str | None = None, examples: int = 512) -> Account:
    """Account for the integer model of a finished run, on its dev set or another file, and write it down.

    The float model it is compared with is the delivered one: its weights, HCCS, and floats for the rest.
    """
    finished = Converted(Path(run))
    integer_model = finished.integer_model  # before anything is computed
    dev = finished.examples(file)
    chosen = dev.by_length(1)[:: max(1, len(dev) // examples)][:examples]
    batches = [
        dev.__getitems__([index for row in chosen[start : start + 64] for index in row])
        for start in range(0, len(chosen), 64)
    ]
    model = finished.loaded.model.to(best_device())
    found = hccs.nn.where_accuracy_goes(model, finished.table, integer_model, batches, pixels=dev.pixels)
    write(found, finished.folder)
    return found


def write(found: Account, folder: Path) -> None:
    """The figure and then the numbers as JSON: where these are there, the figure is, too."""
    if importlib.util.find_spec("matplotlib") is not None:
        figure(found, folder / FIGURE)
    write_json(folder / NUMBERS, _finite(asdict(found)))


def written(folder: Path) -> bool:
    """Whether `write` has finished in this folder."""
    return (folder / NUMBERS).exists()


def read_account(folder: Path) -> Account | None:
    """What `hccs where` found, if it was run; an altered file is refused."""
    path, hint = folder / NUMBERS, "Delete that file, or run hccs where."
    if not path.exists():
        return None
    found: Account = typed(Account, read_json(path, hint), path, hint)
    return found


def _finite(value: Any) -> Any:
    """JSON has no infinity: a value without noise has None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value


# --- the report's section -----------------------------------------------------------------------------------


def where_section(account: Account | None, folder: Path, in_integers: bool) -> list[Markup]:
    """Each operator alone in integers, by kind and by layer; the command where that was not measured."""
    if account is None:
        return [command(f"hccs where {folder}", "Not measured yet:")] if in_integers else []
    single = [c for c in account.worst_operators if c.operator != "embeddings"]
    return [
        paragraph(
            "One kind of operator alone is put into integers, floats around it, and the answers are compared "
            f"with the float model's. All together change {100 * (1 - account.whole.agreement):.1f} % of "
            f"the answers; the logits lie {_decibels(account.whole)} above their noise. Shorter bars are "
            f"better. {_cancelled(account)}"
        ),
        boxed(_header(account), _cells([account.whole, *_by_noise(account.kinds)], account)),
        tag("h3", "By layer, the costliest first"),
        boxed(_header(account), _cells(single[:SHOWN], account)),
    ]


def _cancelled(account: Account) -> str:
    """Why one kind alone may be noisier than everything, where that is so."""
    noisier = [cost.operator for cost in account.kinds if cost.decibels < account.whole.decibels]
    if not noisier:
        return ""
    return (
        f"Alone, {' and '.join(noisier)} {'are' if len(noisier) > 1 else 'is'} noisier than everything "
        "together: rounding errors of different operators partly cancel, above all in a model that was "
        "trained with all of them."
    )


def _by_noise(costs: Sequence[Cost]) -> list[Cost]:
    return sorted(costs, key=lambda cost: cost.decibels)


def _decibels(cost: Cost) -> str:
    return "infinitely" if math.isinf(cost.decibels) else f"{cost.decibels:.1f} dB"


def _header(account: Account) -> list[str]:
    points = [] if account.accuracy is None else ["points"]
    return ["operator", "layer", "answers that stay, %", "KL, nats", "logits, dB", *points, "noise"]


def _cells(costs: Sequence[Cost], account: Account) -> list[list[Any]]:
    def amplitude(cost: Cost) -> float:
        return float(10 ** (-cost.decibels / 20))  # powers would hide all but the worst

    longest = max(amplitude(cost) for cost in costs)
    return [
        [
            tag("strong", "everything") if cost.operator == "everything" else cost.operator,
            "all" if cost.layer is None else cost.layer,
            f"{100 * cost.agreement:.1f}",
            f"{cost.kl:.5f}",
            _decibels(cost).removesuffix(" dB"),
            *([] if account.accuracy is None else [signed(100 * ((cost.accuracy or 0) - account.accuracy))]),
            bar(amplitude(cost), longest, described=_decibels(cost)),
        ]
        for cost in costs
    ]


# --- the terminal's tables and the figure -------------------------------------------------------------------


def operator_rows(found: Account) -> list[list[str]]:
    """Everything, each kind in all layers, then the costliest single operators: cells of a table."""
    everywhere = [found.whole, *_by_noise(found.kinds)]
    single = [c for c in found.worst_operators if c.operator != "embeddings"]  # among the kinds already
    return [
        [
            cost.operator,
            "all" if in_all else "" if cost.layer is None else str(cost.layer),
            f"{100 * cost.agreement:.1f}",
            f"{cost.kl:.5f}",
            f"{cost.decibels:.1f}",
            *([] if found.accuracy is None else [f"{100 * ((cost.accuracy or 0) - found.accuracy):+.2f}"]),
        ]
        for costs, in_all in ((everywhere, True), (single[:SHOWN], False))
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
