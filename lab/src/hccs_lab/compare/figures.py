"""Two figures of a comparison: score curves over distance, and KL beside accuracy. Needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from hccs import _figures
from hccs_lab.compare.curves import drawn_heads
from hccs_lab.compare.entries import FLOAT

FARTHEST = 10.0
"""Distances, in logits, that the curves show."""

OURS = "tab:red"
"""The colour of HCCS's names, in all its forms."""

LEAST_KL = 1e-5
"""What lies below is drawn here: a logarithm has no zero."""


def curves_figure(found: dict[str, Any], path: Path) -> None:
    """Output over distance from the row's maximum, relative to its largest: one panel per method.

    Two heads are shown, those whose logits have the widest and the narrowest range.
    """
    methods = {label: record for label, record in found["methods"].items() if "curves" in record}
    scale = np.asarray(found["scale"])
    heads = drawn_heads(scale)
    across = min(5, len(methods))
    down = math.ceil(len(methods) / across)
    figure = _figures.new(2.3 * across, 1.9 * down)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    exact = np.linspace(0, FARTHEST, 200)
    for place, (label, record) in zip(axes.flat, methods.items(), strict=False):
        place.plot(
            exact, np.exp(-exact), color="black", linewidth=0.8, linestyle="--", label="exp(-distance)"
        )
        for name, head in heads.items():
            curve = np.array(record["curves"][name], dtype=np.float64)
            distance = np.arange(256) * scale[head]
            shown = (distance <= FARTHEST) & np.isfinite(curve)
            place.plot(distance[shown], curve[shown], linewidth=1, label=name)
        place.set_title(label, fontsize=8, color=colour(label))
        place.tick_params(labelsize=6)
    for place in axes.flat[len(methods) :]:
        place.set_visible(False)
    axes.flat[0].legend(fontsize=5.5)
    figure.supxlabel("distance from the row's largest logit", fontsize=8)
    figure.supylabel("output, largest of the row = 1", fontsize=8)
    _figures.save(figure, path)


def accuracy_figure(found: dict[str, Any], path: Path) -> None:
    """A line for every method, the closest to softmax first: its renormalised KL, and points of accuracy."""
    methods = found["methods"]
    base = methods[FLOAT]["accuracy"]
    scored = {name: r for name, r in methods.items() if "fidelity" in r and "accuracy" in r}
    order = sorted(scored, key=lambda name: scored[name]["fidelity"]["kl_renormalised"])
    lines = range(len(order))
    figure = _figures.new(7.6, 1.2 + 0.19 * len(order))
    left, right = figure.subplots(1, 2, sharey=True)
    closeness = [max(scored[name]["fidelity"]["kl_renormalised"], LEAST_KL) for name in order]
    left.plot(closeness, lines, "o", color="tab:blue", markersize=4)
    left.set_xscale("log")
    left.set_xlabel(f"KL(softmax || method), renormalised, nats; at least {LEAST_KL:g}", fontsize=7)
    before = [100 * (scored[name]["accuracy"] - base) for name in order]
    right.plot(before, lines, "o", color="tab:blue", markersize=4, label="without retraining")
    retrained = [
        (i, scored[name]["retrained"]) for i, name in enumerate(order) if "retrained" in scored[name]
    ]
    if retrained:
        after = [100 * (record["accuracy"] - base) for _, record in retrained]
        at = [i for i, _ in retrained]
        right.hlines(at, [before[i] for i in at], after, color="grey", linewidth=0.6)
        right.plot(after, at, "^", color="tab:orange", markersize=5, label="retrained")
    right.axvline(0, color="black", linewidth=0.8, linestyle="--", label=f"float {base:.4f}")
    right.set_xscale("symlog", linthresh=1)  # most methods lie within a point of the float model
    right.xaxis.set_major_formatter("{x:g}")
    right.set_xlabel("accuracy against float, points", fontsize=7)
    right.legend(fontsize=6)
    left.set_yticks(lines, order)
    for name in left.get_yticklabels():
        name.set_color(colour(name.get_text()))
    for axes in (left, right):
        axes.grid(axis="y", linewidth=0.3)
        axes.margins(y=0.02)
        axes.tick_params(labelsize=7)
    left.invert_yaxis()
    _figures.save(figure, path)


def colour(label: str) -> str:
    """HCCS's names stand out."""
    return OURS if label.partition(":")[0].startswith("hccs") else "black"


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """`curves.png` and, where there was a model, `accuracy.png`."""
    drawn = [folder / "curves.png"]
    curves_figure(found, drawn[0])
    if FLOAT in found["methods"]:
        drawn.append(folder / "accuracy.png")
        accuracy_figure(found, drawn[1])
    return drawn
