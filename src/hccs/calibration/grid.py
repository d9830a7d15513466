"""The paper's coarse scan over a bounded grid, kept to compare its speed and result with the exact search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hccs.calibration import _native
from hccs.calibration.searching import TIE, Calibration, Found, deployed_objective, searched, serving
from hccs.calibration.statistics import GroupSummary, HeadStatistics, with_means
from hccs.numbers.heads import NAMES, ONE_LINE, HeadParams
from hccs.numbers.modes import MAX_DISTANCE, Mode
from hccs.numbers.region import Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

DISTANCE_STEP = 8
SLOPES = BASES = 12
"""At most this many values of S for a D, and of B for a pair (S, D): evenly spaced, both ends included."""


def coarse_scan(
    stats: HeadStatistics,
    n: int | None = None,
    granularity: str = "head",
    mode: Mode | str = "i16_div",
    *,
    deployed: bool = False,
    provenance: Mapping[str, object] | None = None,
    threads: int | None = None,
) -> Calibration:
    """`hccs.calibration.search` for one line over a coarse grid, as the paper does it.

    With `deployed`, the objective is the KL in the deployed `mode` instead of that in int16 space.
    """
    region, mode = serving(stats, n), Mode(mode)
    triples = coarse_grid(region.n)

    def find(heads: list[int], means: GroupSummary, interruption: _native.Interruption) -> Found:
        if deployed:
            kl = deployed_objective(stats, heads, triples, mode)
        else:
            kl = with_means(_native.objectives, stats, heads, means, triples)
        best = int(np.argmax(kl <= kl.min() + TIE))  # the first: the grid is in the order of preference
        rest = np.where(np.arange(len(kl)) == best, np.inf, kl)
        second = int(np.argmax(rest <= rest.min() + TIE))
        first, other = (HeadParams.from_packed(triples[index]) for index in (best, second))
        return Found(first, other, float(kl[second]))

    return searched(stats, region, granularity, mode, find, NAMES[:ONE_LINE], provenance, threads)


def coarse_grid(n: int) -> NDArray[np.int32]:
    """Admissible triples (B, S, D) [count, 3] on a coarse grid, in the order in which ties break.

    >>> len(coarse_grid(64)), len(Region(64))
    (1588, 641951)
    """
    region = Region(n)
    triples = []
    for D in (*range(DISTANCE_STEP, MAX_DISTANCE, DISTANCE_STEP), MAX_DISTANCE):
        for S in _spaced(0, region.max_slope(D), SLOPES):
            triples += [(B, S, D) for B in _spaced(region.min_base(S, D), region.max_base, BASES)]
    return np.array(triples, np.int32).reshape(-1, 3)


def _spaced(first: int, last: int, count: int) -> list[int]:
    spaced = np.linspace(first, last, min(count, last - first + 1)).round()
    return [int(value) for value in np.unique(spaced)]
