"""The paper's coarse scan over a bounded grid, kept to compare its speed and result with the exact search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hccs.calibration import _native
from hccs.calibration.statistics import HeadStatistics
from hccs.errors import DataError, DtypeError
from hccs.numbers.modes import MAX_DISTANCE, Mode
from hccs.numbers.region import Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

DISTANCE_STEP = 8
SLOPES = BASES = 12
"""At most this many values of S for a D, and of B for a pair (S, D): evenly spaced, both ends included."""


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


def deployed_objective(
    stats: HeadStatistics, heads: Sequence[int], triples: NDArray[np.int32], mode: Mode
) -> NDArray[np.float64]:
    """Mean KL(softmax || p_hat / sum p_hat) of each triple with p_hat in `mode`, from rows still kept.

    Floors and saturation act on every element, so only the rows themselves tell. Renormalised, since the
    leading-bit modes hand out more than 1, which the plain KL would take for a virtue; a zero output counts
    as half a step, since softmax is never zero.
    """
    if stats.reference != "int8":
        raise DtypeError(
            "statistics of int8 logits", "of float logits", "The deployed mode is compared on int8 logits."
        )
    stats.summary(heads)  # refuses heads without rows
    most = max(count for h in heads for _, count, _ in stats._native.totals(h))
    if most >= _native.ROWS_KEPT:
        raise DataError(
            f"fewer than {_native.ROWS_KEPT} rows of each length, which are kept as they are",
            f"{most} rows of one length",
            "Collect statistics of a smaller sample for KL in the deployed mode.",
        )
    return _native.deployed_objectives(stats._native, list(heads), mode.is_u8, mode.reciprocal, triples)
