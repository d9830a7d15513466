"""Where an integer encoder rounds: every value between its operators, as a place in the float model.

Measuring ranges walks this list, so that it speaks of the same values as the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hccs.nn.lowering.parts import Dense, Layer, PostNorm, PreNorm, Slice, module_of

Visit = Callable[["Point", torch.Tensor], None]
"""Sees the tensor at a point."""


@dataclass(frozen=True)
class Point:
    """A tensor of the float model: the output of modules, or the input of one."""

    name: str
    """The value's name in the program; `*_int8` is the int8 form of a stream."""
    modules: tuple[nn.Module, ...]
    at_input: bool = False
    heads: int | None = None
    """q, k and v have a scale per head."""
    is_int16: bool = False
    """The residual stream and what is added to it; all others are int8."""
    part: Slice | None = None
    """Of a layer that writes several values side by side, which of them."""
    turns: bool = False
    """Rotary positions turn the pairs of a head's channels, which then reach as far as the pair is long."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The point's own channels of what its modules read or write."""
        own = tensor if self.part is None else self.part.of(tensor)
        if own.ndim == 4:  # a norm of heads writes them apart: [batch, n, heads, channels]
            own = own.flatten(-2)
        if not self.turns:
            return own
        first, second = own.unflatten(-1, (self.heads, 2, -1)).unbind(-2)
        length = torch.hypot(first, second)
        return torch.stack([length, length], -2).flatten(-3)


def points(encoder: PostNorm | PreNorm) -> list[Point]:
    """All of them, in the order in which the model meets them."""
    if isinstance(encoder, PreNorm):
        return _pre_norm_points(encoder)
    found = [Point("x0", (encoder.embedding_norm,), is_int16=True)]
    for i, layer in enumerate(encoder.layers):
        found += [
            Point(f"x{i}_int8", modules_of(layer.qkv), at_input=True),
            *_heads(i, layer),
            Point(f"context{i}", (layer.attention_output,), at_input=True),
            Point(f"attended{i}_part", (layer.attention_output,), is_int16=True),
            Point(f"y{i}", (layer.attention_norm,), is_int16=True),
            Point(f"y{i}_int8", (layer.wide,), at_input=True),
            Point(f"wide{i}", (layer.wide,)),
            Point(f"active{i}", (layer.narrow,), at_input=True),
            Point(f"summed{i}_part", (layer.narrow,), is_int16=True),
            Point(f"x{i + 1}", (layer.wide_norm,), is_int16=True),
        ]
    if encoder.projection is not None:
        found[:1] = [
            Point("normed", (encoder.embedding_norm,), is_int16=True),
            Point("normed_int8", (encoder.projection,), at_input=True),
            Point("x0", (encoder.projection,), is_int16=True),
        ]
    last = f"x{len(encoder.layers)}_int8"
    if encoder.vector is not None:
        return found
    assert encoder.classifier is not None
    if encoder.pooler is None:
        return [*found, Point(last, (encoder.classifier,), at_input=True)]
    return [
        *found,
        Point(last, (encoder.pooler,), at_input=True),
        Point("pooled", (encoder.pooler,)),
        Point("activated", (encoder.classifier,), at_input=True),
    ]


def _pre_norm_points(model: PreNorm) -> list[Point]:
    found: list[Point] = []
    for i, layer in enumerate(model.layers):
        found += [
            Point(f"x{i}", (layer.attention_norm,), at_input=True, is_int16=True),
            Point(f"a{i}", (layer.attention_norm,), is_int16=True),
            Point(f"a{i}_int8", modules_of(layer.qkv), at_input=True),
            *_heads(i, layer),
            Point(f"context{i}", (layer.attention_output,), at_input=True),
            Point(f"y{i}_part", (layer.attention_output,), is_int16=True),
            Point(f"y{i}", (layer.wide_norm,), at_input=True, is_int16=True),
            Point(f"b{i}", (layer.wide_norm,), is_int16=True),
            Point(f"b{i}_int8", (module_of(layer.wide),), at_input=True),
            *(_written(f"gate{i}", gate) for gate in (layer.gate,) if gate is not None),
            _written(f"wide{i}", layer.wide),
            Point(f"active{i}", (layer.narrow,), at_input=True),
            Point(f"x{i + 1}_part", (layer.narrow,), is_int16=True),
        ]
    found += [
        Point(f"x{len(model.layers)}", (model.final_norm,), at_input=True, is_int16=True),
        Point("final", (model.final_norm,), is_int16=True),
    ]
    if model.vector is not None:
        return found
    if model.head is None:
        return [*found, Point("final_int8", (model.classifier,), at_input=True)]
    return [
        *found,
        Point("dense", (model.head.dense,)),
        Point("normed", (model.head.norm,), is_int16=True),
        Point("normed_int8", (model.classifier,), at_input=True),
    ]


def _heads(i: int, layer: Layer) -> list[Point]:
    """q, k and v as attention reads them."""
    shared, turns = layer.kv_heads or layer.heads, layer.rotary is not None
    q, k, v = layer.qkv
    raw: list[Point] = []
    if layer.head_norms is not None:
        raw = [_written(f"raw_query{i}", q, heads=layer.heads), _written(f"raw_key{i}", k, heads=shared)]
        q, k = layer.head_norms
    return [
        *raw,
        _written(f"query{i}", q, heads=layer.heads, turns=turns),
        _written(f"key{i}", k, heads=shared, turns=turns),
        _written(f"value{i}", v, heads=shared),
    ]


def _written(name: str, layer: Dense, **options: Any) -> Point:
    part = layer if isinstance(layer, Slice) else None
    return Point(name, (module_of(layer),), part=part, **options)


def modules_of(layers: Sequence[Dense]) -> tuple[nn.Module, ...]:
    """The modules of dense layers, each once."""
    return tuple(dict.fromkeys(module_of(layer) for layer in layers))


@contextmanager
def visiting(chosen: Sequence[Point], visit: Visit) -> Iterator[None]:
    """Call `visit` with the tensor of every chosen point whenever the model runs."""
    handles = [_hook(point, module, visit) for point in chosen for module in point.modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(point: Point, module: nn.Module, visit: Visit) -> Any:
    if point.at_input:
        return module.register_forward_pre_hook(lambda _, inputs: visit(point, inputs[0]))
    return module.register_forward_hook(lambda _, inputs, output: visit(point, point.of(output)))
