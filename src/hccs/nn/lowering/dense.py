"""Dense layers whatever their class: `nn.Linear`, or GPT-2's `Conv1D`, whose weight lies the other way."""

from __future__ import annotations

from typing import Any

import torch

from hccs.errors import ModelError

Dense = Any
"""A module with a weight of two dimensions and, perhaps, a bias."""


def weight_of(layer: Dense) -> torch.Tensor:
    """[outputs, inputs]; gradients reach the layer's own parameter."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise ModelError(
            "dense layers with one float weight of two dimensions",
            type(layer).__name__,
            "Adapters and packed weights: merge them into the layers first.",
        )
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def bias_of(layer: Dense) -> torch.Tensor:
    """[outputs]; zeros where the layer has none."""
    bias: torch.Tensor | None = getattr(layer, "bias", None)
    return weight_of(layer).new_zeros(outputs_of(layer)) if bias is None else bias


def outputs_of(layer: Dense) -> int:
    """How many channels the layer writes."""
    return int(weight_of(layer).shape[0])
