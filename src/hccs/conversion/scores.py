"""Scores with their standard errors: of one model, of the difference of two, and what noise forgives."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Measured:
    """A value and its standard error over the examples."""

    value: float
    error: float

    @property
    def loses(self) -> bool:
        """Of a difference: whether it is below zero by more than noise."""
        return self.value < -FORGIVEN * self.error


def measured(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> Measured:
    """The metric of a model's logits; of accuracy p the error is sqrt(p (1 - p) / examples)."""
    value = metric(logits, labels)
    if metric.function is accuracy:
        return Measured(value, (value * (1 - value) / _count(labels)) ** 0.5)
    return Measured(value, _jackknife(lambda kept: metric(logits[kept], labels[kept]), len(labels)))


def difference(metric: Metric, logits: torch.Tensor, base: torch.Tensor, labels: torch.Tensor) -> Measured:
    """How much higher the metric is than another model's on the same examples, paired: errors that both make
    cancel."""
    if metric.function is accuracy:
        gained = _right(logits, labels) - _right(base, labels)
        return Measured(float(gained.mean()), float(gained.std(correction=0)) / len(gained) ** 0.5)

    def gain(kept: Any) -> float:
        return metric(logits[kept], labels[kept]) - metric(base[kept], labels[kept])

    return Measured(gain(slice(None)), _jackknife(gain, len(labels)))


def closer(
    logits: torch.Tensor, base: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor | None = None
) -> Measured:
    """How much nearer, in KL, logits are to the wanted ones than `base` is, paired; it needs no labels."""
    nearer = _distances(base, wanted, counted) - _distances(logits, wanted, counted)
    return Measured(float(nearer.mean()), float(nearer.std(correction=0)) / len(nearer) ** 0.5)


def _distances(logits: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
    """KL(wanted || logits) of every example, the squared difference of values; of tokens the mean."""
    if logits.shape[-1] == 1:
        found = (logits.double() - wanted.double()).square()[..., 0]
    else:
        own, theirs = (torch.log_softmax(part.double(), -1) for part in (logits, wanted))
        found = (theirs.exp() * (theirs - own)).sum(-1)
    if found.ndim == 1:
        return found
    weights = torch.ones_like(found) if counted is None else counted.to(found)
    return (found * weights).sum(-1) / weights.sum(-1).clamp(min=1)


def _count(labels: torch.Tensor) -> int:
    return int((labels != IGNORED).sum()) if labels.ndim == 2 else len(labels)


def _right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    labels = labels.to(logits.device)
    if logits.ndim == 3:
        counted = labels != IGNORED
        return (logits[:, : labels.shape[1]].argmax(-1) == labels)[counted].double()
    return (logits.argmax(-1) == labels).double()


def _jackknife(value: Any, count: int) -> float:
    """The standard error of a function of the examples, some of them left out in turn."""
    parts = np.array_split(np.arange(count), min(GROUPS, count))
    if len(parts) < 2:
        return 0.0
    left = np.array([value(np.setdiff1d(np.arange(count), part)) for part in parts])
    return float(np.sqrt((len(parts) - 1) / len(parts) * ((left - left.mean()) ** 2).sum()))
