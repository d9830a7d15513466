"""What a decoder's logits are like: where the largest of each row lie, and how much the first token gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hccs.nn.collecting import observing, run
from hccs.nn.interface import attention_layers
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer


class MaximaObserver(Observer):
    """Keeps the highest and the lowest row maximum of every head, and the first key's mean probability."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.highest: torch.Tensor | None = None
        self.lowest: torch.Tensor | None = None
        self.first: torch.Tensor | None = None
        self.rows = 0

    def observe(self, inputs: AttentionInputs) -> None:
        """The first row of a window attends to itself alone, and says nothing."""
        z = inputs.logits.detach()
        if inputs.valid is not None:
            z = z.masked_fill(~inputs.valid, -torch.inf)
        z = z[:, :, 1:]
        top = z.amax(-1).transpose(0, 1).flatten(1)
        first = z[..., 0].sub(z.logsumexp(-1)).exp().transpose(0, 1).flatten(1)
        high, low, weight = top.amax(1), top.amin(1), first.sum(1).double()
        if self.highest is None or self.lowest is None or self.first is None:
            self.highest, self.lowest, self.first = high, low, weight
        else:
            self.highest, self.lowest = torch.maximum(self.highest, high), torch.minimum(self.lowest, low)
            self.first = self.first + weight
        self.rows += first.shape[1]


def row_maxima(model: nn.Module, batches: Sequence[Any]) -> dict[str, Any]:
    """The "highest" and "lowest" row maxima and the "first" token's mean weight, [layers, heads] each."""
    observers: list[MaximaObserver] = []

    def observer(inner: AttentionSlot) -> AttentionSlot:
        observers.append(MaximaObserver(inner))
        return observers[-1]

    with observing(model, {name: observer for name in attention_layers(model)}):
        run(model, batches, "looking at rows")
    found = {
        "highest": [o.highest for o in observers],
        "lowest": [o.lowest for o in observers],
        "first": [None if o.first is None else o.first / o.rows for o in observers],
    }
    return {name: torch.stack(values).double().cpu().numpy() for name, values in found.items()}  # type: ignore[arg-type]
