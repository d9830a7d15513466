"""Figures of a conversion: accuracy by stage, KL per head, probability curves. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hccs import _figures
from hccs.conversion.report.heads import FARTHEST, Head, surrogate
from hccs.conversion.results import Results
from hccs.numbers.modes import MAX_DISTANCE

MOST_HEADS = 12
"""Panels of a figure: the worst heads."""


def accuracy_figure(results: Results, path: Path) -> None:
    """Float, then HCCS in each mode without and, where it was done, after retraining."""
    name, base = results.float_model.metric, results.float_model.score.value
    shown = {"without retraining": results.calibrated.modes}
    if results.retrain is not None:
        shown["retrained"] = results.retrain.modes
    modes = list(results.calibrated.modes)
    figure = _figures.new(6.4, 3.4)
    axes = figure.subplots()
    for offset, (label, scores) in enumerate(shown.items()):
        heights = [scores[mode] for mode in modes]
        axes.bar([i + 0.4 * offset - 0.2 for i in range(len(modes))], heights, 0.38, label=label)
    axes.axhline(base, color="black", linewidth=1, linestyle="--", label=f"float {base:.3f}")
    axes.set_xticks(range(len(modes)), modes)
    every = [base, *(score for scores in shown.values() for score in scores.values())]
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
