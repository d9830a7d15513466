"""Models taken apart into their modules, whatever their family: post-norm encoders and pre-norm stacks.

In a pre-norm stack, ViT, GPT-2 and their like, LayerNorm stands in front of attention and of the wide layer,
and the residual stream goes on without one: the stream itself is int16, in one step for all layers, and what
LayerNorm makes of it is read by dense layers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs.errors import ModelError

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


@dataclass(frozen=True)
class Block:
    attention_norm: nn.LayerNorm
    qkv: tuple[Dense, ...]
    """Three layers, or one whose outputs are q, k and v side by side."""
    heads: int
    scaling: float
    attention_output: Dense
    wide_norm: nn.LayerNorm
    wide: Dense
    activation: Any
    narrow: Dense

    @property
    def width(self) -> int:
        return outputs_of(self.qkv[0]) // (3 if len(self.qkv) == 1 else 1)


@dataclass(frozen=True)
class Words:
    """Token ids: the sum of a word's and a position's row is the stream."""

    words: nn.Embedding
    positions: nn.Embedding


@dataclass(frozen=True)
class PixelScaling:
    """A model reads (pixel * factor - mean) / std of pixels from 0 to 255, per channel of the image."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1 / 255

    def as_integers(self, values: torch.Tensor) -> torch.Tensor:
        """The pixels, 0 to 255 in float64, of a model's input [batch, channels, height, width]."""
        mean, std = (values.new_tensor(part, dtype=torch.float64) for part in (self.mean, self.std))
        real = (values.double() * std[:, None, None] + mean[:, None, None]) / self.factor
        return real.round().clamp(0, 255)


@dataclass(frozen=True)
class Patches:
    """Images: special rows and projected patches, positions added, are the stream."""

    module: nn.Module
    """Its output is the stream; its input are the pixels, normalised."""
    projection: nn.Conv2d
    special: tuple[nn.Parameter, ...]
    positions: nn.Parameter
    image: tuple[int, int, int]
    pixels: PixelScaling

    @property
    def patch(self) -> int:
        return int(self.projection.kernel_size[0])

    @property
    def of_integers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [width, channels * patch^2] and bias of the projection, for pixels - 128 as they are."""
        weight = self.projection.weight.double()
        mean, std = (weight.new_tensor(part) for part in (self.pixels.mean, self.pixels.std))
        middle = (128 * self.pixels.factor - mean) / std
        bias = (weight * middle[:, None, None]).flatten(1).sum(1)
        if self.projection.bias is not None:
            bias = bias + self.projection.bias.double()
        return (weight * (self.pixels.factor / std)[:, None, None]).flatten(1), bias

    @property
    def special_rows(self) -> torch.Tensor:
        return torch.cat([row.reshape(-1, row.shape[-1]) for row in self.special])


@dataclass(frozen=True)
class PreNorm:
    """A stack of pre-norm layers between an embedding and a head of one linear layer."""

    source: Words | Patches
    layers: tuple[Block, ...]
    final_norm: nn.LayerNorm
    classifier: Dense
    labels: tuple[str, ...]
    causal: bool
    first_only: bool
    """Scores of the first token alone, not of each."""

    @property
    def streams(self) -> list[tuple[str, nn.LayerNorm]]:
        """The states of the stream in order, each with the LayerNorm that reads it."""
        found: list[tuple[str, nn.LayerNorm]] = []
        for i, layer in enumerate(self.layers):
            found += [(f"x{i}", layer.attention_norm), (f"y{i}", layer.wide_norm)]
        return [*found, (f"x{len(self.layers)}", self.final_norm)]
