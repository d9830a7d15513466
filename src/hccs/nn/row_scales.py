"""The logit scale that reaches what matters to a softmax: every row's maximum, and what lies not far below it.

Only distance from a row's largest logit matters. The usual int8 step reaches the largest magnitude of a head's
logits, whichever it is; the step of its rows reaches from the highest row maximum to `MARGIN` below the lowest,
which is finer wherever logits far below every maximum are what is large, as in decoders. Finer steps let a line
of at most 127 a step begin higher, so that its floor, which ever more keys share as rows grow, is lower.
"""

from __future__ import annotations

from typing import Any

import torch

from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

MARGIN = 10.0
"""Logits so far below a row's largest one take no part in its softmax: exp(-10) is 1 / 22000."""


class RowMaximaObserver(Observer):
    """Keeps the highest and the lowest row maximum of every head; rows of one logit have nothing to say."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.highest: Any = -torch.inf
        self.lowest: Any = torch.inf

    def observe(self, inputs: AttentionInputs) -> None:
        """Padding takes no part as a key; as a query it may widen the range a little."""
        z = inputs.logits.detach().float()
        if inputs.valid is None:
            many: torch.Tensor | bool = z.shape[-1] > 1
        else:
            z = z.masked_fill(~inputs.valid, -torch.inf)
            many = inputs.valid.expand(z.shape).sum(-1) > 1
        top = z.amax(-1)
        told = torch.as_tensor(many, device=top.device).expand(top.shape)
        self.highest = torch.maximum(
            torch.as_tensor(self.highest, device=top.device),
            top.masked_fill(~told, -torch.inf).amax((0, 2)),
        )
        self.lowest = torch.minimum(
            torch.as_tensor(self.lowest, device=top.device), top.masked_fill(~told, torch.inf).amin((0, 2))
        )


def reach_of_rows(highest: torch.Tensor, lowest: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """What 127 steps must reach; never more than the largest magnitude, nor less than any row's maximum."""
    return torch.minimum(torch.maximum(highest, MARGIN - lowest), largest)
