"""The picture of a calibration: per head, softmax against the surrogate, over the mass by distance."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs import _figures
from hccs.calibration.searching import Calibration, HeadRecord
from hccs.calibration.statistics import HeadStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_HEADS = 48
COLUMNS = 8


def save_figure(path: str | os.PathLike[str], stats: HeadStatistics, calibration: Calibration) -> None:
    """Save a panel per head (the first 48): exp(-d * scale), the surrogate's s(d) / s(0), the mass P(d)."""
    records = calibration.heads[:MOST_HEADS]
    columns = min(COLUMNS, max(calibration.table.shape[1], 2))
    rows = math.ceil(len(records) / columns)
    figure = _figures.new(2.1 * columns, 1.9 * rows + 0.6)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for panel in panels.reshape(-1)[len(records) :]:
        panel.set_axis_off()
    for panel, record in zip(panels.reshape(-1), records, strict=False):
        mass = stats.summary([record.layer * stats.shape[1] + record.head]).mass
        _draw(panel, record, mass)
    for panel in panels[-1]:
        panel.set_xlabel("distance from the maximum, steps", fontsize=7)
    figure.supylabel("relative to the maximum", fontsize=8)
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    title = f"mean KL {calibration.kl:.4f}, n = {calibration.table.n}"
    if len(records) < len(calibration.heads):
        title += f"; the first {len(records)} of {len(calibration.heads)} heads"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    _figures.save(figure, path)


def _draw(panel: Any, record: HeadRecord, mass: NDArray[np.float64]) -> None:
    d = np.arange(128)
    theta = record.params
    scores = (theta.B - theta.S * np.minimum(d, theta.D) - theta.S2 * np.minimum(d, theta.D2)) >> theta.f
    # The maximum itself holds most of the mass; the bars are drawn to the scale of what lies beyond it.
    tallest = max(mass[1:].max(), 1e-300)
    panel.bar(d, np.minimum(mass[:128] / tallest, 1.0), width=1.0, color="0.85", label="mass (beyond 0)")
    panel.plot(d, np.exp(-d * record.scale), color="C0", lw=1.2, label="softmax")
    panel.plot(d, scores / scores[0], color="C3", lw=1.2, label="surrogate")
    panel.set_title(f"layer {record.layer} head {record.head}   KL {record.kl:.3f}", fontsize=7)
    panel.tick_params(labelsize=6)
    panel.set_xlim(0, 127)
    panel.set_ylim(0, 1.02)
