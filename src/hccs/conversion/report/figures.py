"""Figures of a conversion: accuracy by stage, KL per head, probability curves. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hccs import _figures
from hccs.conversion.report.heads import FARTHEST, Head, surrogate
from hccs.numbers.modes import MAX_DISTANCE

MOST_HEADS = 12
"""Panels of a figure: the worst heads."""


def accuracy_figure(stages: dict[str, Any], path: Path) -> None:
    """Float, then HCCS in each mode without and, where it was done, after retraining."""
    name = stages["float"].get("metric", "accuracy")
    base = stages["float"][name]
    modes = list(stages["without retraining"]["modes"])
    shown = {"without retraining": "without retraining", "retrain": "retrained"}
    shown = {stage: label for stage, label in shown.items() if stage in stages}
    figure = _figures.new(6.4, 3.4)
    axes = figure.subplots()
    for offset, (stage, label) in enumerate(shown.items()):
        scores = [stages[stage]["modes"][mode] for mode in modes]
        axes.bar([i + 0.4 * offset - 0.2 for i in range(len(modes))], scores, 0.38, label=label)
    axes.axhline(base, color="black", linewidth=1, linestyle="--", label=f"float {base:.3f}")
    axes.set_xticks(range(len(modes)), modes)
    every = [base, *(score for stage in shown for score in stages[stage]["modes"].values())]
    axes.set_ylim(min(every) - 0.02, max(every) + 0.02)
    axes.set_ylabel(f"dev {name}")
    axes.legend(fontsize=8)
    _figures.save(figure, path)


def heads_figure(heads: Sequence[Head], path: Path) -> None:
    """The worst heads: HCCS over distance against softmax, one panel each."""
    shown = heads[:MOST_HEADS]
    across = min(4, len(shown))
    figure = _figures.new(2.6 * across, 2.0 * math.ceil(len(shown) / across))
    panels = figure.subplots(-(-len(shown) // across), across, sharey=True, squeeze=False)
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    for panel, head in zip(panels.flat, shown, strict=False):
        last = min(FARTHEST, MAX_DISTANCE * head.scale)
        exact = [last * i / 60 for i in range(61)]
        panel.plot(exact, [math.exp(-x) for x in exact], color="tab:blue", label="softmax")
        panel.plot(
            *zip(*surrogate(head.theta, head.scale, last), strict=True), color="tab:orange", label="HCCS"
        )
        panel.set_xlim(0, last)
        panel.set_title(f"{head.name}: KL {head.kl:.3f}", fontsize=8)
        panel.tick_params(labelsize=6)
    panels.flat[0].legend(fontsize=7, frameon=False)
    figure.supxlabel("distance from the row's largest logit", fontsize=8)
    if len(shown) < len(heads):
        figure.suptitle(f"the {len(shown)} worst of {len(heads)} heads", fontsize=9)
    _figures.save(figure, path)


def fidelity_figure(found: dict[str, Any], path: Path, title: str = "") -> None:
    """The paper's figure: probability over key index for a broad and a focused head; and KL per head."""
    figure = _figures.new(11, 3.2)
    axes = figure.subplots(1, 3)
    for place, (name, curve) in zip(axes, found["curves"].items(), strict=False):
        place.plot(curve["softmax"], label="float softmax", color="tab:blue")
        place.plot(curve["hccs"], label="HCCS, retrained", color="tab:orange")
        place.set_title(f"{name}: layer {curve['layer']}, head {curve['head']}", fontsize=9)
        place.set_xlabel("key index")
        place.set_ylabel("mean probability")
        place.legend(fontsize=7)
    heads = range(len(found["kl_before"]))
    axes[2].bar([h - 0.2 for h in heads], found["kl_before"], 0.4, label="without retraining")
    axes[2].bar([h + 0.2 for h in heads], found["kl_after"], 0.4, label="retrained")
    axes[2].set_xlabel("head")
    axes[2].set_ylabel("KL, nats")
    axes[2].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    _figures.save(figure, path)
