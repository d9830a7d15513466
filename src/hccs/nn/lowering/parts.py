"""Models taken apart into their modules, whatever their family: post-norm encoders and pre-norm stacks.

In a pre-norm stack, ViT, GPT-2, Llama and their like, a norm stands in front of attention and of the wide
layer, and the residual stream goes on without one: the stream has one step for all layers, and what the norm
makes of it is read by dense layers alone.
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
"""A module with a weight of two dimensions and, perhaps, a bias; or a `Slice` of one."""


@dataclass(frozen=True)
class Slice:
    """One of `count` equal runs of a dense module's outputs: q of a layer that writes q, k and v."""

    module: nn.Module
    index: int
    count: int

    def of(self, outputs: torch.Tensor) -> torch.Tensor:
        """Its own channels of the module's outputs."""
        return outputs.chunk(self.count, -1)[self.index]


def slices(module: nn.Module, count: int) -> tuple[Slice, ...]:
    return tuple(Slice(module, index, count) for index in range(count))


def module_of(layer: Dense) -> nn.Module:
    """The module that computes a dense layer."""
    return layer.module if isinstance(layer, Slice) else layer  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the module that computes angles, and the layer type that it asks for, if any."""

    module: Any
    layer_type: str | None = None

    def tables(self, positions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cosines and sines [positions, pairs] of channels i and i + pairs."""
        kind = () if self.layer_type is None else (self.layer_type,)
        with torch.no_grad():
            found = self.module(torch.zeros(1), torch.arange(positions)[None], *kind)
        cosine, sine = (as_numbers(part[0]) for part in found)
        return cosine[:, : cosine.shape[1] // 2], sine[:, : sine.shape[1] // 2]


@dataclass(frozen=True)
class Layer:
    """Attention and a feed-forward part. Its norms are those of each sum with the stream, or stand first."""

    qkv: tuple[Dense, Dense, Dense]
    heads: int
    scaling: float
    attention_output: Dense
    attention_norm: Any
    """LayerNorm, RMSNorm, or the identity in front of a first layer whose input is normalised already."""
    wide: Dense
    activation: Any
    narrow: Dense
    wide_norm: Any
    norm_first: bool = True
    gate: Dense | None = None
    """Of a gated layer, whose `narrow` reads activation(gate) * wide."""
    kv_heads: int | None = None
    """Heads of k and v, where several heads of q share them."""
    window: int | None = None
    """The keys around a query, or up to it, that it sees; all by default."""
    rotary: Rotary | None = None
    head_norms: tuple[Any, Any] | None = None
    """RMSNorm of each head of q, and of k, in front of rotary positions."""

    @property
    def width(self) -> int:
        return outputs_of(self.qkv[0])


@dataclass(frozen=True)
class VectorHead:
    """How the tokens of a text become its vector: pooling, then dense layers with their activations."""

    pooling: str = "mean"
    dense: tuple[tuple[nn.Linear, Any], ...] = ()


@dataclass(frozen=True)
class PostNorm:
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
    projection: nn.Linear | None = None
    """From embeddings to the width of the layers."""

    @property
    def embedding_tables(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Words, positions and types; one type of zeros where the family has none."""
        none = self.words.weight.new_zeros(1, self.words.embedding_dim)
        return self.words.weight, self.positions.weight, none if self.types is None else self.types.weight


def as_numbers(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().cpu().numpy()  # type: ignore[no-any-return]


def is_rms(norm: nn.Module) -> bool:
    """Whether a norm takes no mean away: the families name its epsilon `variance_epsilon`."""
    return hasattr(norm, "variance_epsilon")


def eps_of(norm: Any) -> float:
    return float(norm.variance_epsilon if is_rms(norm) else norm.eps)


def weight_of(layer: Dense) -> torch.Tensor:
    """[outputs, inputs]; gradients reach the layer's own parameter."""
    if isinstance(layer, Slice):
        return weight_of(layer.module).chunk(layer.count)[layer.index]
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
    if isinstance(layer, Slice):
        return bias_of(layer.module).chunk(layer.count)[layer.index]
    bias: torch.Tensor | None = getattr(layer, "bias", None)
    return weight_of(layer).new_zeros(outputs_of(layer)) if bias is None else bias


def outputs_of(layer: Dense) -> int:
    return int(weight_of(layer).shape[0])


@dataclass(frozen=True)
class Words:
    """Token ids: the sum of a word's and a position's row is the stream, or is normalised first."""

    words: nn.Embedding
    positions: nn.Embedding | None = None
    norm: nn.LayerNorm | None = None


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
class NormedHead:
    """Between pooling and the classifier: dense layer, activation, LayerNorm."""

    dense: Dense
    activation: Any
    norm: nn.LayerNorm


EVERY, FIRST, LAST, MEAN = "every", "first", "last", "mean"


@dataclass(frozen=True)
class PreNorm:
    """A stack of pre-norm layers between an embedding and a head."""

    source: Words | Patches
    layers: tuple[Layer, ...]
    final_norm: Any
    classifier: Any
    labels: tuple[str, ...]
    causal: bool
    reads: str
    """The tokens that scores are computed from: every one, the first, the last, or their mean."""
    head: NormedHead | None = None
    vector: VectorHead | None = None
    """With one, it has no classifier."""

    @property
    def is_modern(self) -> bool:
        """Whether a layer has a part that is computed from rows with exponents alone."""
        return any(layer.rotary is not None or layer.gate is not None for layer in self.layers)

    @property
    def streams(self) -> list[tuple[str, nn.Module]]:
        """The states of the stream in order, each with the norm that reads it."""
        found: list[tuple[str, nn.Module]] = []
        for i, layer in enumerate(self.layers):
            found += [(f"x{i}", layer.attention_norm), (f"y{i}", layer.wide_norm)]
        return [*found, (f"x{len(self.layers)}", self.final_norm)]
