"""The PyTorch form of ReLA: a slot that computes the attention output itself."""

from __future__ import annotations

import torch
from torch import nn

from hccs.nn.slots import AttentionInputs, AttentionSlot
from hccs_lab.surrogates import tensors

EPSILON = 1e-8


class RectifiedAttention(AttentionSlot):
    """Gated, RMS-normalised ReLU attention of one layer's heads."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(heads, 1, width))
        self.gate = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """The scores ReLU(z) of logits [batch, heads, q, k]; masked positions get 0."""
        tensors.require_numbers(z)
        return z.relu() if valid is None else z.relu() * valid

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The gated output [batch, heads, q, d] and the scores."""
        scores = self(inputs.logits, inputs.valid)
        o = torch.matmul(scores, inputs.for_every_head(inputs.value))
        # A token's heads lie side by side when the root mean square is taken: over heads and channels.
        mean_square = o.float().square().mean((1, 3), keepdim=True)
        normalised = o * torch.rsqrt(mean_square + EPSILON).to(o.dtype)
        gain, gate = self.gain.to(o.dtype), self.gate.to(o.dtype)
        return gain * normalised * torch.sigmoid(gate * o), scores
