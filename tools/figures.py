"""Makes the README's figure, docs/figures/accuracy-against-cost.svg, from the measurements in docs/results.

    python tools/figures.py

Its description holds a digest of the data it was drawn from, by which a test sees that it is up to date.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

from hccs_lab.figures import new_figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FIGURE = ROOT / "docs" / "figures" / "accuracy-against-cost.svg"
SHAPE = "8 x 128"
"""Sentences and tokens of the batch whose time is shown."""
OURS = "hccs, all in integers"
STAGE = "whole mended"
"""Of `hccs reproduce`: all in integers from the float weights, without labels or training."""
MODELS = {
    "tiny-sst2": "BERT-tiny, SST-2",
    "small-sst2": "BERT-small, SST-2",
    "minilm-sst2": "MiniLM-L6, SST-2",
    "tiny-mnli": "BERT-tiny, MNLI",
    "small-mnli": "BERT-small, MNLI",
    "minilm-mnli": "MiniLM-L6, MNLI",
}


def milliseconds() -> dict[str, float]:
    """Of a BERT-small encoder on one thread, by runtime, the slowest first."""
    rows = json.loads((RESULTS / "encoder_cpu.json").read_text(encoding="utf-8"))["rows"]
    (row,) = (row for row in rows if row["name"] == SHAPE)
    return {name: 1e3 * s for name, s in sorted(row["seconds"].items(), key=lambda pair: -pair[1])}


def against_float() -> dict[str, tuple[float, float]]:
    """Points of the integer model against float, and their standard error, means over seeds."""
    cells = json.loads((RESULTS / "reproduction.json").read_text(encoding="utf-8"))["cells"]
    found = {}
    for key, name in MODELS.items():
        own = [cell[STAGE] for seed, cell in cells.items() if seed.startswith(f"{key}-") and STAGE in cell]
        found[name] = fmean(cell["points"] for cell in own), fmean(cell["points_error"] for cell in own)
    return found


def digest() -> str:
    """Of the measurements that the figure shows."""
    return hashlib.sha256(json.dumps([milliseconds(), against_float()]).encode()).hexdigest()[:16]


def draw(path: Path) -> None:
    """The time of a whole encoder beside other runtimes; below it, what its integers cost in accuracy.

    Narrow and with large letters, so that it can be read on a phone.
    """
    figure = new_figure(5.4, 5.6)
    cost, accuracy = figure.subplots(2, 1, height_ratios=[1.15, 1])
    times = milliseconds()
    colours = ["C1" if name == OURS else "silver" for name in times]
    bars = cost.barh(list(times), list(times.values()), color=colours)
    cost.bar_label(bars, [f"{ms:.0f}" for ms in times.values()], padding=3, fontsize=10)
    cost.margins(x=0.12)
    _title(cost, f"Time: BERT-small, {SHAPE} tokens, one thread, ms")
    points = against_float()
    places = range(len(points))[::-1]
    middle, error = zip(*points.values(), strict=True)
    accuracy.errorbar(middle, places, xerr=error, fmt="D", color="C1", markersize=6, linewidth=1)
    accuracy.axvline(0, color="black", linewidth=0.8, linestyle="--")
    accuracy.set_yticks(list(places), list(points))
    accuracy.set_xlim(-1.5, 1.5)
    accuracy.set_ylim(-0.6, len(points) - 0.4)
    _title(accuracy, "Accuracy: all in integers against float, no training, points")
    for axes in (cost, accuracy):
        axes.tick_params(labelsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    written: dict[str, Any] = {"Date": None, "Description": f"drawn from {digest()}"}
    with matplotlib.rc_context({"svg.hashsalt": "hccs", "svg.fonttype": "path"}):
        figure.savefig(path, format="svg", metadata=written, facecolor="white")


def _title(axes: Any, text: str) -> None:
    """Over the whole width of the figure: it begins above the labels, not above the axes."""
    title = axes.set_title(text, fontsize=11, loc="left")
    title.set_in_layout(False)
    axes.figure.draw_without_rendering()
    title.set_x(axes.transAxes.inverted().transform((axes.figure.transFigure.transform((0.02, 0))[0], 0))[0])


if __name__ == "__main__":
    draw(FIGURE)
