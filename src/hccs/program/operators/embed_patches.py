"""`EmbedPatches`: the patches of a uint8 image through a linear layer, after the rows of special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccs.errors import DtypeError, MaskError, ShapeError
from hccs.numbers.arrays import array_of
from hccs.numbers.layers import INT16_LIMIT, LinearParams, PatchParams
from hccs.program.operators.linear import Linear
from hccs.program.operators.operator import Array, Batch, Constants, Embedding, Operator, Value
from hccs.reference.embedding import embed_patches

PIXEL_LIMIT = 128
"""Pixels enter as pixel - 128."""


@dataclass(frozen=True, eq=False)
class EmbedPatches(Embedding):
    """int16 rows, one per special token and per patch, with positions added."""

    output: str
    params: PatchParams
    inputs: tuple[str, ...] = ()

    @property
    def image(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.params.image

    @property
    def most_rows(self) -> int:
        return self.params.tokens

    def rows(self, longest: int) -> int:
        return self.params.tokens

    def written(self, given: Sequence[Value]) -> Value:
        self.require(self.params.positions.size > 0, "at least one row and one channel", self.params.image)
        return Value(16, self.params.positions.shape[1], INT16_LIMIT)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return embed_patches(batch.tokens, self.params)

    def parts(self) -> tuple[tuple[Operator, Value], ...]:
        pixels, patches = f"{self.output}.pixels", f"{self.output}.patches"
        cut = CutPixels(pixels, self.params)
        layer = Linear((pixels,), patches, self.params.projection)
        cut_value = Value(8, self.params.projection.weight.shape[1], PIXEL_LIMIT)
        layer_value = Value(16, self.params.projection.weight.shape[0], INT16_LIMIT)
        place = PlacePatches((patches,), self.output, self.params)
        return (cut, cut_value), (layer, layer_value), (place, self.written([]))

    def read(self, tokens: Any, mask: Any, types: Any, longest: int) -> Batch:
        images = array_of("images", tokens)
        if images.dtype != np.uint8:
            raise DtypeError(
                "images of uint8, 0 to 255",
                f"dtype {images.dtype}",
                "Resize alone: the program normalises the pixels itself.",
            )
        images = images[None] if images.ndim == 3 else images
        if images.shape[1:] != self.image:
            raise ShapeError(
                f"images of shape [batch, {', '.join(map(str, self.image))}]",
                str(images.shape),
                "Resize them.",
            )
        if mask is not None or types is not None or np.ma.is_masked(tokens):
            raise MaskError("images alone", "a mask or token types", "An image has no padding.")
        lengths = np.full(len(images), self.params.tokens, np.int64)
        return Batch(np.ascontiguousarray(images), lengths, np.zeros((0, 0), np.int64))

    def constants(self) -> Constants:
        p, layer = self.params, self.params.projection
        assert layer.multiplier is not None
        return (
            {
                "weight": layer.weight,
                "bias": layer.bias,
                "multiplier": layer.multiplier,
                "special": p.special,
                "positions": p.positions,
            },
            {"patch": p.patch, "image": p.image},
        )

    @classmethod
    def from_constants(
        cls, place: Mapping[str, Any], arrays: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> EmbedPatches:
        own = dict(arrays)
        weight, bias, multiplier = (own.pop(name) for name in ("weight", "bias", "multiplier"))
        projection = LinearParams(weight, bias, multiplier, INT16_LIMIT, PIXEL_LIMIT)
        image = tuple(numbers["image"])
        return cls(**place, params=PatchParams(projection, **own, patch=numbers["patch"], image=image))

    @property
    def shape(self) -> str:
        p = self.params
        return f"{p.tokens} rows x {p.positions.shape[1]}, patches of {p.patch} x {p.patch}"

    @property
    def products(self) -> int:
        return int(self.params.projection.weight.size)


@dataclass(frozen=True, eq=False)
class CutPixels(Operator):
    """The pixels of every patch; zeros in the rows of special tokens. A part of `EmbedPatches`."""

    output: str
    params: PatchParams
    inputs: tuple[str, ...] = ()

    embeds = True
    uses_position = True


@dataclass(frozen=True, eq=False)
class PlacePatches(Operator):
    """The rows of special tokens before the patches, positions added to all. A part of `EmbedPatches`."""

    inputs: tuple[str]
    output: str
    params: PatchParams

    uses_position = True
