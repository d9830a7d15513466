"""How sure a score is: 95 % intervals of a score, and of its difference from the float model's.

A share of right answers has Wilson's interval, and the difference of two models on the same examples that of
Bonett and Price, which counts only the answers that changed. Any other metric is computed again on examples
drawn with replacement, the same ones for both models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import HccsError
from hccs.pipeline.metrics import Metric, accuracy

if TYPE_CHECKING:
    from numpy.typing import NDArray

Z = 1.959964
"""Standard deviations on either side of a mean that hold 95 % of a normal distribution."""

DRAWS = 200
"""Samples of the examples for metrics that are no shares."""


@dataclass(frozen=True)
class Against:
    """A score minus another on the same examples, with its interval; and the answers that changed."""

    difference: float
    low: float
    high: float
    lost: int | None = None
    """Answers that were right and are wrong now; None where answers are no right or wrong."""
    gained: int | None = None

    @property
    def clear(self) -> bool:
        """Whether chance alone would rarely bring such a difference."""
        return self.low > 0 or self.high < 0


def of_share(share: float, examples: int) -> tuple[float, float]:
    """Wilson's interval of a share of so many examples.

    >>> tuple(round(end, 4) for end in of_share(0.8, 1000))
    (0.7741, 0.8236)
    """
    middle = share + Z**2 / (2 * examples)
    reach = Z * math.sqrt(share * (1 - share) / examples + Z**2 / (4 * examples**2))
    low, high = ((middle + sign * reach) / (1 + Z**2 / examples) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def of_changes(lost: int, gained: int, examples: int) -> Against:
    """The difference of two shares of right answers, from the answers that changed.

    >>> of_changes(lost=10, gained=10, examples=1000).clear, of_changes(60, 10, 1000).clear
    (False, True)
    """
    total = examples + 2
    worse, better = (lost + 1) / total, (gained + 1) / total
    reach = Z * math.sqrt((worse + better - (better - worse) ** 2) / total)
    middle = better - worse
    return Against((gained - lost) / examples, middle - reach, middle + reach, lost, gained)


def interval(metric: Metric, logits: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float] | None:
    """The interval of a score; None where the metric fails on most samples."""
    if metric.function is accuracy:
        return of_share(accuracy(logits, labels), len(labels))
    return _ends([_score(metric, logits[rows], labels[rows]) for rows in _samples(len(labels))])


def against(metric: Metric, logits: NDArray[Any], base: NDArray[Any], labels: NDArray[Any]) -> Against | None:
    """A model's score minus another's, both on the same examples."""
    if metric.function is accuracy:
        now, before = (part.argmax(-1) == labels for part in (logits, base))
        return of_changes(int((before & ~now).sum()), int((now & ~before).sum()), len(labels))
    pairs = [
        tuple(_score(metric, part[rows], labels[rows]) for part in (logits, base))
        for rows in _samples(len(labels))
    ]
    ends = _ends([None if a is None or b is None else a - b for a, b in pairs])
    now_score, base_score = _score(metric, logits, labels), _score(metric, base, labels)
    if ends is None or now_score is None or base_score is None:
        return None
    return Against(now_score - base_score, *ends)


def _samples(count: int) -> list[NDArray[np.int64]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, count, count) for _ in range(DRAWS)]


def _score(metric: Metric, logits: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """None where a sample has no score, such as one of a single label."""
    try:
        found = float(metric.function(logits, labels))
    except (HccsError, ValueError, ZeroDivisionError, IndexError):
        return None
    return found if math.isfinite(found) else None


def _ends(scores: list[float | None]) -> tuple[float, float] | None:
    found = sorted(score for score in scores if score is not None)
    if 2 * len(found) < len(scores):
        return None
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)
