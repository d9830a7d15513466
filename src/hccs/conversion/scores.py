"""Scores with standard errors and intervals: of one model, and of the difference of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hccs.conversion.data.problems import IGNORED
from hccs.conversion.metrics import Metric, accuracy

GROUPS = 50
"""Parts of the examples that are left out in turn where a metric has no formula for its error."""

FORGIVEN = 2.0
"""Standard errors within which a difference is taken for noise."""


Z = 1.959964
"""Standard deviations on either side of a mean that hold 95 % of a normal distribution."""

Interval = tuple[float, float]


def of_share(share: float, examples: int) -> Interval:
    """Wilson's 95 % interval of a share of so many examples: it stays within 0 and 1.

    >>> tuple(round(end, 4) for end in of_share(0.8, 1000))
    (0.7741, 0.8236)
    """
    middle = share + Z**2 / (2 * examples)
    reach = Z * math.sqrt(share * (1 - share) / examples + Z**2 / (4 * examples**2))
    low, high = ((middle + sign * reach) / (1 + Z**2 / examples) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def of_pairs(won: int, lost: int, examples: int) -> Interval:
    """Bonett and Price's 95 % interval of the difference of two shares of the same examples.

    An example counts as won where only the first model is right and as lost where only the second is. The
    interval stays open where no answer differs: 66 equal answers do not show that all answers are equal.

    >>> tuple(round(end, 3) for end in of_pairs(0, 0, 66))
    (-0.041, 0.041)
    """
    gain, loss = (won + 1) / (examples + 2), (lost + 1) / (examples + 2)
    reach = Z * math.sqrt((gain + loss - (gain - loss) ** 2) / (examples + 2))
    return max(-1.0, gain - loss - reach), min(1.0, gain - loss + reach)


@dataclass(frozen=True)
class Measured:
    """A value and its standard error over the examples."""

    value: float
    error: float
    counted: int | None = None
    """Examples or tokens, where the value is a share of them."""

    @property
    def interval(self) -> Interval:
        if self.counted is not None:
            return of_share(self.value, self.counted)
        return self.value - Z * self.error, self.value + Z * self.error

    @property
    def loses(self) -> bool:
        """Whether a difference is below zero by more than noise."""
        return self.value < -FORGIVEN * self.error


@dataclass(frozen=True)
class Difference:
    """How much higher a score is than another model's on the same examples."""

    value: float
    error: float
    counted: int
    """Examples, or labelled tokens of shares."""
    won: int | None = None
    """Where scores are shares: how often this model alone is right."""
    lost: int | None = None

    @property
    def interval(self) -> Interval:
        """The 95 % interval; where no answer differs the rule of three keeps it open."""
        if self.won is not None and self.lost is not None:
            return of_pairs(self.won, self.lost, self.counted)
        reach = Z * self.error if self.error else min(1.0, 3 / self.counted)
        return self.value - reach, self.value + reach


def measured(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> Measured:
    """The metric of a model's logits; an accuracy p has the error sqrt(p (1 - p) / examples)."""
    value = metric(logits, labels)
    if metric.function is accuracy:
        count = int((labels != IGNORED).sum()) if labels.ndim == 2 else len(labels)
        return Measured(value, (value * (1 - value) / count) ** 0.5, count)
    return Measured(value, _jackknife(lambda kept: metric(logits[kept], labels[kept]), len(labels)))


def difference(metric: Metric, logits: torch.Tensor, base: torch.Tensor, labels: torch.Tensor) -> Difference:
    """How much higher the metric is than another model's on the same examples; errors of both cancel."""
    if metric.function is accuracy:
        gained = _right(logits, labels) - _right(base, labels)
        error = float(gained.std(correction=0)) / len(gained) ** 0.5
        won, lost = int((gained > 0).sum()), int((gained < 0).sum())
        return Difference(float(gained.mean()), error, len(gained), won, lost)

    def gain(kept: Any) -> float:
        return metric(logits[kept], labels[kept]) - metric(base[kept], labels[kept])

    return Difference(gain(slice(None)), _jackknife(gain, len(labels)), len(labels))


def closer(
    logits: torch.Tensor, base: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor | None = None
) -> Measured:
    """How much nearer, in KL, logits are to the wanted ones than `base` is, paired; it needs no labels."""
    nearer = _distances(base, wanted, counted) - _distances(logits, wanted, counted)
    return Measured(float(nearer.mean()), float(nearer.std(correction=0)) / len(nearer) ** 0.5)


def _distances(logits: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
    """KL(wanted || logits) of every example, or the squared difference of values; tokens are averaged."""
    if logits.shape[-1] == 1:
        found = (logits.double() - wanted.double()).square()[..., 0]
    else:
        own, theirs = (torch.log_softmax(part.double(), -1) for part in (logits, wanted))
        found = (theirs.exp() * (theirs - own)).sum(-1)
    if found.ndim == 1:
        return found
    weights = torch.ones_like(found) if counted is None else counted.to(found)
    return (found * weights).sum(-1) / weights.sum(-1).clamp(min=1)


def _right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    labels = labels.to(logits.device)
    if logits.ndim == 3:
        counted = labels != IGNORED
        return (logits[:, : labels.shape[1]].argmax(-1) == labels)[counted].double()
    return (logits.argmax(-1) == labels).double()


def _jackknife(value: Any, count: int) -> float:
    """The standard error of a function of the examples, parts of which are left out in turn."""
    parts = np.array_split(np.arange(count), min(GROUPS, count))
    if len(parts) < 2:
        return 0.0
    left = np.array([value(np.setdiff1d(np.arange(count), part)) for part in parts])
    return float(np.sqrt((len(parts) - 1) / len(parts) * ((left - left.mean()) ** 2).sum()))
