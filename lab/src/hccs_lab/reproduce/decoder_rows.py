"""The rows of a decoder's attention: what the first token gets, and statistics at two scales.

One int8 step reaches the largest magnitude of a head's logits, or what matters to its rows: see
`hccs.nn.collecting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs.calibration import HeadStatistics
from hccs.nn.collecting import (
    RangeObserver,
    RowMaximaObserver,
    StatisticsObserver,
    observing,
    reach_of_rows,
    run,
)
from hccs.nn.interface import attention_layers
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer


@dataclass(frozen=True, eq=False)
class Seen:
    """What the logits of all heads are like."""

    plain: HeadStatistics
    """With the scale of the largest magnitude."""
    fitted: HeadStatistics
    """With the scale of what matters."""
    first: np.ndarray[Any, Any]
    """The mean weight of the first token, [layers, heads]."""


class FirstTokenObserver(Observer):
    """Keeps the mean weight of the first token of every head."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.first: Any = 0.0
        self.rows = 0

    def observe(self, inputs: AttentionInputs) -> None:
        """Of every window but its first row, which attends to itself alone."""
        z = inputs.logits.detach()
        if inputs.valid is not None:
            z = z.masked_fill(~inputs.valid, -torch.inf)
        z = z[:, :, 1:]
        first = z[..., 0].sub(z.logsumexp(-1)).exp().transpose(0, 1).flatten(1)
        self.first = self.first + first.sum(1).double()
        self.rows += first.shape[1]

    @property
    def weight(self) -> torch.Tensor:
        """[heads]."""
        mean: torch.Tensor = self.first / self.rows
        return mean


def look(model: nn.Module, windows: Sequence[Any], n: int) -> Seen:
    """The statistics at both scales, in two passes over the windows."""
    layers = list(attention_layers(model))
    ranges: dict[str, RangeObserver] = {}
    maxima: dict[str, RowMaximaObserver] = {}
    firsts: dict[str, FirstTokenObserver] = {}

    def first_pass(inner: AttentionSlot, name: str) -> AttentionSlot:
        firsts[name] = FirstTokenObserver(inner)
        maxima[name] = RowMaximaObserver(firsts[name])
        ranges[name] = RangeObserver(maxima[name])
        return ranges[name]

    with observing(model, {name: partial(first_pass, name=name) for name in layers}):
        run(model, windows, "looking at rows")
    largest, qkv = (
        torch.stack([getattr(ranges[name], part) for name in layers]).double() for part in ("largest", "qkv")
    )
    highest, lowest = (
        torch.stack([getattr(maxima[name], part) for name in layers]).double()
        for part in ("highest", "lowest")
    )
    made = [
        HeadStatistics(
            shape=(largest.shape[0], largest.shape[1]),
            n=n,
            scale=np.maximum(limit.numpy(), 1e-6) / 127,
            layers=layers,
            qkv_scale=np.maximum(qkv.numpy(), 1e-6) / 127,
        )
        for limit in (largest, reach_of_rows(highest, lowest, largest))
    ]

    def second_pass(inner: AttentionSlot, layer: int) -> AttentionSlot:
        for stats in made:
            inner = StatisticsObserver(inner, stats, layer)
        return inner

    with observing(model, {name: partial(second_pass, layer=i) for i, name in enumerate(layers)}):
        run(model, windows, "collecting")
    return Seen(made[0], made[1], torch.stack([firsts[name].weight for name in layers]).numpy())
