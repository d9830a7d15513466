"""The rows of a decoder's attention: where their largest logits lie, what the first token gets, statistics.

Only distance from a row's largest logit matters to softmax. The usual int8 step reaches the largest magnitude
of a head's logits; the fitted one reaches from the highest row maximum to `MARGIN` below the lowest, which is
finer wherever logits far below every maximum are what is large.
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
from hccs.nn.collecting import RangeObserver, StatisticsObserver, observing, run
from hccs.nn.interface import attention_layers
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

MARGIN = 10.0
"""Logits so far below a row's largest one take no part in its softmax: exp(-10) is 1 / 22000."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the logits of all heads are like."""

    plain: HeadStatistics
    """With the scale of the largest magnitude."""
    fitted: HeadStatistics
    """With the scale of what matters."""
    first: np.ndarray[Any, Any]
    """The mean weight of the first token, [layers, heads]."""


class MaximaObserver(Observer):
    """Keeps the highest and the lowest row maximum of every head, and the first token's weight."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.highest: Any = -torch.inf
        self.lowest: Any = torch.inf
        self.first: Any = 0.0
        self.rows = 0

    def observe(self, inputs: AttentionInputs) -> None:
        """Of every window but its first row, which attends to itself alone."""
        z = inputs.logits.detach()
        if inputs.valid is not None:
            z = z.masked_fill(~inputs.valid, -torch.inf)
        z = z[:, :, 1:]
        top = z.amax(-1).transpose(0, 1).flatten(1)
        first = z[..., 0].sub(z.logsumexp(-1)).exp().transpose(0, 1).flatten(1)
        self.highest = torch.maximum(torch.as_tensor(self.highest), top.amax(1))
        self.lowest = torch.minimum(torch.as_tensor(self.lowest), top.amin(1))
        self.first = self.first + first.sum(1).double()
        self.rows += first.shape[1]


def look(model: nn.Module, windows: Sequence[Any], n: int) -> Seen:
    """The statistics at both scales, in two passes over the windows."""
    layers = list(attention_layers(model))
    ranges: dict[str, RangeObserver] = {}
    maxima: dict[str, MaximaObserver] = {}

    def first_pass(inner: AttentionSlot, name: str) -> AttentionSlot:
        maxima[name] = MaximaObserver(inner)
        ranges[name] = RangeObserver(maxima[name])
        return ranges[name]

    with observing(model, {name: partial(first_pass, name=name) for name in layers}):
        run(model, windows, "looking at rows")
    largest, qkv = (
        torch.stack([getattr(ranges[name], part) for name in layers]).double().numpy()
        for part in ("largest", "qkv")
    )
    highest, lowest, first = (
        torch.stack([getattr(maxima[name], part) for name in layers]).double().numpy()
        for part in ("highest", "lowest", "first")
    )
    # Never coarser than the largest magnitude asks for.
    reach = np.minimum(np.maximum(highest, MARGIN - lowest), largest)
    made = [
        HeadStatistics(
            shape=largest.shape,
            n=n,
            scale=np.maximum(limit, 1e-6) / 127,
            layers=layers,
            qkv_scale=np.maximum(qkv, 1e-6) / 127,
        )
        for limit in (largest, reach)
    ]

    def second_pass(inner: AttentionSlot, layer: int) -> AttentionSlot:
        for stats in made:
            inner = StatisticsObserver(inner, stats, layer)
        return inner

    with observing(model, {name: partial(second_pass, layer=i) for i, name in enumerate(layers)}):
        run(model, windows, "collecting")
    rows = np.array([[maxima[name].rows] for name in layers])
    return Seen(made[0], made[1], first / rows)
