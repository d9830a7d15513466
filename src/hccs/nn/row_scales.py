"""The logit scale that reaches what matters to a softmax: row maxima, and what lies not far below.

Only distance from a row's largest logit matters. The usual int8 step reaches the largest magnitude of a
head's logits, whichever it is; that of its rows reaches from the highest row maximum to `MARGIN` below the
lowest, which is finer wherever logits far below every maximum are what is large, as in decoders. Finer steps
let a line that falls by at most 127 a step begin higher, so that its floor, which ever more keys share as
rows grow, is lower.
"""

from __future__ import annotations

from typing import Any

import torch

from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

MARGIN = 10.0
"""Logits so far below a row's largest one take no part in its softmax: exp(-10) is 1 / 22000."""


def real_rows(z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor | None:
    """`valid` without the rows of padding queries: in self-attention a real token may attend to itself."""
    if valid is None or z.shape[-1] != z.shape[-2]:
        return valid
    full = valid.expand(*valid.shape[:-2], z.shape[-2], z.shape[-1])
    return full & torch.diagonal(full, dim1=-2, dim2=-1)[..., None]


class RowMaximaObserver(Observer):
    """Keeps the highest and the lowest row maximum of every head; rows of one logit have nothing to say."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.highest: Any = -torch.inf
        self.lowest: Any = torch.inf

    def observe(self, inputs: AttentionInputs) -> None:
        """Padding counts neither as key nor as query."""
        z = inputs.logits.detach().float()
        rows = real_rows(z, inputs.valid)
        taking_part = torch.ones_like(z, dtype=torch.bool) if rows is None else rows.expand(z.shape)
        top = z.masked_fill(~taking_part, -torch.inf).amax(-1)
        several = taking_part.sum(-1) > 1
        highest = top.masked_fill(~several, -torch.inf).amax((0, 2))
        lowest = top.masked_fill(~several, torch.inf).amin((0, 2))
        self.highest = torch.maximum(torch.as_tensor(self.highest, device=top.device), highest)
        self.lowest = torch.minimum(torch.as_tensor(self.lowest, device=top.device), lowest)


def reach_of_rows(highest: torch.Tensor, lowest: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """What 127 steps must reach; never more than the largest magnitude, nor less than any row's maximum."""
    return torch.minimum(torch.maximum(highest, MARGIN - lowest), largest)
