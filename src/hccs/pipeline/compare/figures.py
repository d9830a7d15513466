"""Two figures of a comparison: score curves over distance, and accuracy against KL. Needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from hccs import _figures
from hccs.pipeline.compare.curves import drawn_heads
from hccs.pipeline.compare.entries import FLOAT

FARTHEST = 10.0
"""Distances, in logits, that the curves show."""

HEIGHTS = (12, 30, 48, 66, -16, -34, -52)
"""Points above or below its mark that a name is put at, in turn."""


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
        place.set_title(label, fontsize=8)
        place.tick_params(labelsize=6)
    for place in axes.flat[len(methods) :]:
        place.set_visible(False)
    axes.flat[0].legend(fontsize=5.5)
    figure.supxlabel("distance from the row's largest logit", fontsize=8)
    figure.supylabel("output, largest of the row = 1", fontsize=8)
    _figures.save(figure, path)


def accuracy_figure(found: dict[str, Any], path: Path) -> None:
    """Points of accuracy lost or won against the float model, over renormalised KL."""
    methods = found["methods"]
    base = methods[FLOAT]["accuracy"]
    figure = _figures.new(7.6, 4.4)
    axes = figure.subplots()
    scored = [(name, r) for name, r in methods.items() if "fidelity" in r and "accuracy" in r]
    scored.sort(key=lambda pair: pair[1]["fidelity"]["kl_renormalised"])
    for number, (label, record) in enumerate(scored):
        kl = max(record["fidelity"]["kl_renormalised"], 1e-5)
        before = 100 * (record["accuracy"] - base)
        axes.plot(kl, before, "o", color="tab:blue", markersize=4)
        if "retrained" in record:
            after = 100 * (record["retrained"]["accuracy"] - base)
            axes.plot([kl, kl], [before, after], color="grey", linewidth=0.6)
            axes.plot(kl, after, "^", color="tab:orange", markersize=5)
        # Neighbours in KL get their names at different heights.
        axes.annotate(
            label,
            (kl, before),
            (6, HEIGHTS[number % len(HEIGHTS)]),
            textcoords="offset points",
            fontsize=6,
            arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": "grey"},
        )
    axes.plot([], [], "o", color="tab:blue", label="without retraining")
    if any("retrained" in record for _, record in scored):
        axes.plot([], [], "^", color="tab:orange", label="retrained")
    axes.axhline(0, color="black", linewidth=0.8, linestyle="--", label=f"float {base:.4f}")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)  # most methods lie within a point of the float model
    axes.margins(x=0.12, y=0.3)
    axes.set_xlabel("KL(softmax || method), renormalised, nats; at least 1e-5")
    axes.set_ylabel("accuracy against float, points")
    axes.legend(fontsize=7)
    _figures.save(figure, path)


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """`curves.png` and, where there was a model, `accuracy.png`."""
    drawn = [folder / "curves.png"]
    curves_figure(found, drawn[0])
    if FLOAT in found["methods"]:
        drawn.append(folder / "accuracy.png")
        accuracy_figure(found, drawn[1])
    return drawn
