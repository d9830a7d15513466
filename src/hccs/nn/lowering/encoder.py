"""A post-norm encoder taken apart into its modules, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Dense = Any
"""A module with a weight of two dimensions and, perhaps, a bias."""


@dataclass(frozen=True)
class Layer:
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    scaling: float
    attention_output: nn.Linear
    attention_norm: nn.LayerNorm
    wide: nn.Linear
    activation: Any
    narrow: nn.Linear
    output_norm: nn.LayerNorm

    @property
    def width(self) -> int:
        return self.query.out_features

    @property
    def heads(self) -> int:
        """How many: q.k is scaled by d^-1/2."""
        return round(self.query.out_features * self.scaling**2)


@dataclass(frozen=True)
class VectorHead:
    """How the tokens of a text become its vector: pooling, then dense layers with their activations."""

    pooling: str = "mean"
    dense: tuple[tuple[nn.Linear, Any], ...] = ()


@dataclass(frozen=True)
class Encoder:
    """An encoder and its head: linear, a function, linear on the first token; or linear on every token.

    Without a `pooler` every token has scores of its own. With a `vector` head it has no classifier.
    """

    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    first_position: int
    embedding_norm: nn.LayerNorm
    layers: tuple[Layer, ...]
    pooler: nn.Linear | None
    pooler_activation: Any
    classifier: nn.Linear | None
    labels: tuple[str, ...]
    vector: VectorHead | None = None

    @property
    def embedding_tables(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Words, positions and types; one type of zeros where the family has none."""
        none = self.words.weight.new_zeros(1, self.words.embedding_dim)
        return self.words.weight, self.positions.weight, none if self.types is None else self.types.weight


def as_numbers(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().cpu().numpy()  # type: ignore[no-any-return]


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
    return int(weight_of(layer).shape[0])
