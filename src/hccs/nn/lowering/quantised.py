"""A float model that rounds where its integer program rounds, with gradients: for training, and to see what costs.

Scales stay as they were measured. Weights are rounded by the rule of `quantise_linear`, values at every point; the
gradient passes straight through inside a range and stops outside it. Attention is HCCS with its exact quotient, as
integer attention computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.nn.attaching import detach, fill
from hccs.nn.functional import surrogate
from hccs.nn.interface import attention_layers
from hccs.nn.lowering.encoder import Encoder, Layer, stream_bits
from hccs.nn.lowering.points import Point, points, visiting
from hccs.numbers.embeddings import MAX_WORD_SHIFT
from hccs.numbers.multipliers import INT8_LIMIT, INT16_LIMIT, MULTIPLIER_SHIFT
from hccs.numbers.table import ParamTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

ATTENTION, WEIGHTS, EMBEDDINGS = "attention", "weights", "embeddings"
"""What can be rounded beside the points of a program."""


@contextmanager
def quantised(
    model: nn.Module,
    encoder: Encoder,
    table: ParamTable,
    largest: Mapping[str, NDArray[Any]],
    only: Callable[[str], bool] = lambda name: True,
) -> Iterator[None]:
    """Inside, the model computes as its integer program would; `only` chooses points and parts by name."""
    scales = point_scales(encoder, largest)
    chosen = [point for point in points(encoder) if only(point.name)]
    limits = {p.name: INT16_LIMIT if _is_stream(p.name) else INT8_LIMIT for p in chosen}

    made: dict[str, torch.Tensor] = {}

    def visit(point: Point, value: torch.Tensor) -> torch.Tensor:
        if point.name not in made or made[point.name].device != value.device:
            made[point.name] = _like(scales[point.name], value, point.heads)
        if point.name.endswith("_int8"):  # from the stream's integers, so that ties are ties
            stream = point.name.removesuffix("_int8")
            steps = torch.fake_quantize_per_tensor_affine(
                value / float(scales[stream]), 1.0, 0, -32767, 32767
            )
            ratio = float(scales[point.name] / scales[stream])
            return torch.fake_quantize_per_tensor_affine(steps / ratio, 1.0, 0, -127, 127) * float(
                scales[point.name]
            )
        return rounded(value, made[point.name], limits[point.name], value.ndim - 1)

    with ExitStack() as stack:
        if only(ATTENTION):
            names = list(table.provenance.get("layers") or attention_layers(model))
            fill({name: ExactHeadSoftmax(table, i) for i, name in enumerate(names)}, model)
            stack.callback(detach, model)
        if only(WEIGHTS):
            for module, in_scale, out_scale in _linears(encoder, scales):
                stack.enter_context(_patched(module, _linear_forward(module, in_scale, out_scale)))
        if only(EMBEDDINGS):
            for module in filter(None, (encoder.words, encoder.positions, encoder.types)):
                stack.enter_context(_patched(module, _embedding_forward(module, encoder)))
        stack.enter_context(visiting(chosen, visit))
        yield


def rounded(x: torch.Tensor, scale: torch.Tensor, limit: int, axis: int = 0) -> torch.Tensor:
    """x on the grid of `scale`, at most `limit` steps from 0; straight-through inside, no gradient outside.

    A scale of several values belongs to the positions along `axis`.
    """
    if scale.ndim == 0:
        zero = torch.zeros((), dtype=torch.int32, device=x.device)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, -limit, limit)
    zeros = torch.zeros(scale.shape, dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_channel_affine(x, scale, zeros, axis, -limit, limit)


class ExactHeadSoftmax(nn.Module):
    """HCCS on int8 logits with the exact quotient s / Z: what deferred normalisation computes."""

    theta: torch.Tensor
    scale: torch.Tensor

    def __init__(self, table: ParamTable, layer: int) -> None:
        super().__init__()
        self.register_buffer("theta", torch.tensor(table.layer(layer).packed), persistent=False)
        scale = torch.tensor(table.scale[layer], dtype=torch.float32)[:, None, None]
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """Probabilities of logits [batch, heads, q, k]; masked positions get exactly 0."""
        reach = torch.clamp(z / self.scale, -128, 127)
        x = reach + (reach.round() - reach).detach()
        return torch.nan_to_num(surrogate(x, self.theta, valid))


def point_scales(encoder: Encoder, largest: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """The value of one step at every point, as `assemble` chooses them."""
    scales = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    depth = len(encoder.layers)
    for i in range(depth + 1):
        following = {f"x{i}": f"attended{i}_part", f"y{i}": f"summed{i}_part"}
        for stream, part in following.items():
            if stream not in largest:
                continue
            bits = stream_bits(largest, stream, part)
            scales[stream] = scales[f"{stream}_int8"] / 2.0**bits
            scales[part] = scales[stream]
    return scales


def _is_stream(name: str) -> bool:
    return name.endswith("_part") or (name[0] in "xy" and not name.endswith("_int8"))


def _like(scale: NDArray[np.float64], value: torch.Tensor, heads: int | None) -> torch.Tensor:
    """A scale, or one per head repeated over the head's columns, beside a value."""
    tensor = torch.tensor(scale, dtype=torch.float32, device=value.device)
    return tensor if heads is None else tensor.repeat_interleave(value.shape[-1] // heads)


def _linears(encoder: Encoder, scales: Mapping[str, Any]) -> Iterator[tuple[nn.Linear, Any, Any]]:
    """Every linear layer with its input's scale and its output's; None for the scores."""
    for i, layer in enumerate(encoder.layers):
        for name, module in (("query", layer.query), ("key", layer.key), ("value", layer.value)):
            width = module.out_features // layer.heads
            yield module, scales[f"x{i}_int8"], np.repeat(scales[f"{name}{i}"], width)
        yield from _feed_forward(i, layer, scales)
    yield encoder.pooler, scales[f"x{len(encoder.layers)}_int8"], scales["pooled"]
    yield encoder.classifier, scales["activated"], None


def _feed_forward(i: int, layer: Layer, scales: Mapping[str, Any]) -> Iterator[tuple[nn.Linear, Any, Any]]:
    yield layer.attention_output, scales[f"context{i}"], scales[f"x{i}"]
    yield layer.wide, scales[f"y{i}_int8"], scales[f"wide{i}"]
    yield layer.narrow, scales[f"active{i}"], scales[f"y{i}"]


def _linear_forward(
    module: nn.Linear, in_scale: Any, out_scale: Any
) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = module.weight
        with torch.no_grad():
            if out_scale is None:
                scale = weight.abs().amax().clamp(min=1e-30) / INT8_LIMIT
            else:
                out = torch.as_tensor(out_scale, dtype=weight.dtype, device=weight.device)
                step = out / float(in_scale) / 2.0**MULTIPLIER_SHIFT
                scale = (weight.abs().amax(1) / INT8_LIMIT / step).ceil().clamp(min=1) * step
        bias_step = scale * float(in_scale)
        bias = module.bias + ((module.bias / bias_step).round() * bias_step - module.bias).detach()
        return nn.functional.linear(x, rounded(weight, scale, INT8_LIMIT), bias)

    return forward


def _embedding_forward(module: nn.Embedding, encoder: Encoder) -> Callable[[torch.Tensor], torch.Tensor]:
    step = encoder.words.weight.detach().abs().amax().clamp(min=1e-30) / INT8_LIMIT
    scale, limit = (
        (step, INT8_LIMIT) if module is encoder.words else (step / 2.0**MAX_WORD_SHIFT, INT16_LIMIT)
    )

    def forward(ids: torch.Tensor) -> torch.Tensor:
        found = nn.functional.embedding(ids, module.weight, module.padding_idx)
        return rounded(found, scale.to(found.device), limit)

    return forward


@contextmanager
def _patched(module: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Give one module another forward; its class and its state stay."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
