"""A pre-norm stack taken apart into its modules: ViT, GPT-2 and their like.

LayerNorm stands in front of attention and of the wide layer, and the residual stream goes on without one:
the stream itself is int16, in one step for all layers, and what LayerNorm makes of it is read by dense layers
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.nn.lowering.encoder import Dense, as_numbers, outputs_of, weight_of
from hccs.numbers.embeddings import MAX_WORD_SHIFT
from hccs.numbers.multipliers import INT8_LIMIT, INT16_LIMIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

NORM_BITS = 7
"""LayerNorm writes steps this many bits finer than the int8 that dense layers read."""


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
    def width(self) -> int:
        return int(weight_of(self.classifier).shape[1])

    @property
    def streams(self) -> list[tuple[str, nn.LayerNorm]]:
        """The states of the stream in order, each with the LayerNorm that reads it."""
        found: list[tuple[str, nn.LayerNorm]] = []
        for i, layer in enumerate(self.layers):
            found += [(f"x{i}", layer.attention_norm), (f"y{i}", layer.wide_norm)]
        return [*found, (f"x{len(self.layers)}", self.final_norm)]


def steps_of(model: PreNorm, largest: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Steps by the names of `points`; the stream and all that is added to it share one."""
    steps = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    stream = stream_step(model, float(largest["stream"]))
    for i in range(len(model.layers) + 1):
        for name in (f"x{i}", f"y{i}", f"x{i}_part", f"y{i}_part"):
            if name in steps:
                steps[name] = np.float64(stream)
    for name in norm_names(model):
        steps[name] = steps[f"{name}_int8"] / 2.0**NORM_BITS
    steps["stream"] = np.float64(stream)
    return steps


def norm_names(model: PreNorm) -> list[str]:
    return [f"{kind}{i}" for i in range(len(model.layers)) for kind in ("a", "b")] + ["final"]


def stream_step(model: PreNorm, reach: float) -> float:
    """The finest step in which int16 reaches so far, and int8 words moved up by at most 7 bits theirs."""
    step = reach / INT16_LIMIT
    if isinstance(model.source, Words):
        words = float(abs(as_numbers(model.source.words.weight)).max())
        step = max(step, words / (INT8_LIMIT << MAX_WORD_SHIFT))
    return step


def word_shift(model: PreNorm, step: float) -> int:
    """By how many bits words are coarser than the stream: as few as let 127 of them reach the largest."""
    assert isinstance(model.source, Words)
    words = float(abs(as_numbers(model.source.words.weight)).max())
    shifts = range(MAX_WORD_SHIFT)
    return next((s for s in shifts if INT8_LIMIT * step * 2**s >= words), MAX_WORD_SHIFT)
