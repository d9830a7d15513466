"""The heads of a run, the worst first, each with its curve against softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hccs.calibration import HeadStatistics
from hccs.conversion.results import HeadFit
from hccs.errors import FileError
from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.modes import MAX_DISTANCE
from hccs.numbers.table import CONVERTED, ParamTable

FARTHEST = 12.0
"""Distances in logits that a curve shows at most: exp(-12) is six millionths."""


@dataclass(frozen=True)
class Head:
    """One head: its parameters, its KL and the mass that softmax puts at each distance."""

    layer: int
    head: int
    theta: HeadParams
    scale: float
    kl: float
    entropy: float
    calibrated_kl: float | None = None
    distances: NDArray[np.float64] | None = None
    """Softmax's mass by distance, in the steps of the calibration."""
    step: float = 1.0

    @property
    def key(self) -> str:
        """Its place on the page."""
        return f"head-{self.layer}-{self.head}"

    @property
    def name(self) -> str:
        return f"layer {self.layer}, head {self.head}"

    @property
    def theta_words(self) -> str:
        """Its parameters with their names."""
        values = self.theta.packed.tolist()
        return " ".join(f"{name} {value}" for name, value in zip(NAMES, values, strict=False))

    # --- its curve: points of SVG in the frame of `curve` in parts.html -------------------------------------

    @property
    def last(self) -> float:
        """The distance where the curve ends, in logits."""
        return min(FARTHEST, MAX_DISTANCE * self.scale)

    @property
    def softmax(self) -> str:
        distances = np.linspace(0, self.last, 61)
        return self._points(distances, np.exp(-distances))

    @property
    def hccs(self) -> str:
        theta, d = self.theta, np.arange(math.ceil(self.last / self.scale) + 1)
        scores = (theta.B - theta.S * np.minimum(d, theta.D) - theta.S2 * np.minimum(d, theta.D2)) >> theta.f
        return self._points(np.minimum(d * self.scale, self.last), scores / max(int(scores[0]), 1))

    @property
    def mass(self) -> str:
        """The mass beyond the maximum itself, which holds most of it, to the scale of its largest."""
        if self.distances is None:
            return ""
        x = np.arange(1, len(self.distances)) * self.step
        y = self.distances[1:][x <= self.last]
        x = x[x <= self.last]
        if not len(x):
            return ""
        return self._points(np.array([x[0], *x, x[-1]]), np.array([0, *(0.94 * y / (y.max() or 1)), 0]))

    def _points(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
        across, down = 34 + 376 * x / self.last, 180 - 172 * y
        return " ".join(f"{a:.1f},{d:.1f}" for a, d in zip(across, down, strict=True))


def heads_of(folder: Path, calibrated: Sequence[HeadFit], delivered: Sequence[HeadFit]) -> list[Head]:
    """Every head of a finished run, the worst first; curves have no mass where the statistics are gone."""
    table = ParamTable.load(folder / CONVERTED)
    statistics = folder / "statistics.safetensors"
    stats = HeadStatistics.load(statistics) if statistics.exists() else None
    before = {(fit.layer, fit.head): fit.kl for fit in calibrated}
    now = {(fit.layer, fit.head): fit for fit in delivered}
    if not {*np.ndindex(table.shape)} <= now.keys():
        raise FileError(
            f"results of all heads in {folder / 'results.json'}", f"{len(now)} heads", "Convert the model."
        )
    found = [
        Head(
            layer,
            head,
            table.head(layer, head),
            float(table.scale[layer, head]),
            now[layer, head].kl,
            now[layer, head].entropy,
            before.get((layer, head)),
            None if stats is None else stats.summary([layer * table.shape[1] + head]).mass,
            1.0 if stats is None else float(stats.scale[layer, head]),
        )
        for layer, head in np.ndindex(table.shape)
    ]
    return sorted(found, key=lambda h: -h.kl)
