"""A post-norm encoder taken apart, whatever its family, and put together again as a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.errors import ModelError
from hccs.numbers.embeddings import EmbeddingParams
from hccs.numbers.layer_norm import NormParams
from hccs.numbers.multipliers import INT8_LIMIT, INT16_LIMIT, quantise_linear, quantise_scores
from hccs.numbers.requant import Requant
from hccs.numbers.table import ParamTable
from hccs.program import operators as op
from hccs.reference.table import table as function_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

STREAM_BITS = 7
"""The int16 stream is this much finer than the int8 that linear layers read."""


@dataclass(frozen=True)
class Layer:
    """The modules of one encoder layer."""

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
    def heads(self) -> int:
        """How many: q.k is scaled by d^-1/2."""
        return round(self.query.out_features * self.scaling**2)


@dataclass(frozen=True)
class Encoder:
    """An encoder with a head on its first token: linear, a function, linear."""

    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    first_position: int
    embedding_norm: nn.LayerNorm
    layers: tuple[Layer, ...]
    pooler: nn.Linear
    pooler_activation: Any
    classifier: nn.Linear
    labels: tuple[str, ...]


def assemble(
    encoder: Encoder, table: ParamTable, largest: Mapping[str, NDArray[Any]], tokenizer: str
) -> op.Program:
    """The program of an encoder whose values reach the `largest` magnitudes."""
    if len(encoder.layers) != table.shape[0]:
        raise ModelError(
            f"a table of {len(encoder.layers)} layers", str(table.shape[0]), "Calibrate on this model."
        )
    build = _Builder(largest)
    types = torch.zeros(1, encoder.words.embedding_dim) if encoder.types is None else encoder.types.weight
    params, step = EmbeddingParams.from_float(
        *map(_numbers, (encoder.words.weight, encoder.positions.weight, types))
    )
    build.add(op.Embed("embedded", params, encoder.first_position), step)
    stream = build.norm("embedded", encoder.embedding_norm, "x0", "attended0_part")
    for i, layer in enumerate(encoder.layers):
        stream = _layer(build, i, layer, table, stream)
    build.add(op.First((build.narrowed(stream),), "first"), build.int8_scale(stream))
    build.linear("first", encoder.pooler, "pooled", largest["pooled"] / INT8_LIMIT)
    build.function("pooled", encoder.pooler_activation, "activated", largest["activated"] / INT8_LIMIT)
    scores, score_scale = quantise_scores(
        _numbers(encoder.classifier.weight),
        _numbers(encoder.classifier.bias),
        in_scale=build.scales["activated"],
    )
    build.add(op.Linear(("activated",), "scores", scores), score_scale)
    longest = min(table.n, encoder.positions.num_embeddings - encoder.first_position)
    return op.Program(
        tuple(build.operators),
        encoder.labels,
        longest,
        score_scale,
        build.scales,
        tokenizer,
        {"table": dict(table.provenance)},
    )


def _layer(build: _Builder, i: int, layer: Layer, table: ParamTable, stream: str) -> str:
    largest, heads = build.largest, table.shape[1]
    qkv = [largest[f"{name}{i}"] / INT8_LIMIT for name in ("query", "key", "value")]  # [heads] each
    width = layer.query.out_features // heads
    weight = np.concatenate([_numbers(part.weight) for part in (layer.query, layer.key, layer.value)])
    bias = np.concatenate([_numbers(part.bias) for part in (layer.query, layer.key, layer.value)])
    x = build.narrowed(stream)
    params = quantise_linear(
        weight, bias, in_scale=build.scales[x], out_scale=np.concatenate([np.repeat(s, width) for s in qkv])
    )
    build.add(op.Linear((x,), f"qkv{i}", params), None)
    context = float(largest[f"context{i}"]) / INT8_LIMIT
    requant = Requant.from_scales(
        q_scale=qkv[0],
        k_scale=qkv[1],
        v_scale=qkv[2],
        logit_scale=table.scale[i],
        scaling=layer.scaling,
        out_scale=context,
    )
    build.add(op.Attention((f"qkv{i}",), f"context{i}", table.layer(i), requant), context)
    build.residual(f"context{i}", layer.attention_output, stream, f"attended{i}", input_limit=128)
    middle = build.norm(f"attended{i}", layer.attention_norm, f"y{i}", f"summed{i}_part")
    build.linear(build.narrowed(middle), layer.wide, f"wide{i}", largest[f"wide{i}"] / INT8_LIMIT)
    build.function(f"wide{i}", layer.activation, f"active{i}", largest[f"active{i}"] / INT8_LIMIT)
    build.residual(f"active{i}", layer.narrow, middle, f"summed{i}")
    return build.norm(f"summed{i}", layer.output_norm, f"x{i + 1}", f"attended{i + 1}_part")


def stream_bits(largest: Mapping[str, NDArray[Any]], stream: str, added: str) -> int:
    """How much finer than int8 a stream is: as fine as its own reach, and that of what is added to it, allow."""
    reach = max(float(largest[stream]), float(largest.get(added, 0.0)))
    scale = float(largest[f"{stream}_int8"]) / INT8_LIMIT
    return next((bits for bits in range(STREAM_BITS, 0, -1) if reach <= scale / 2**bits * INT16_LIMIT), 0)


class _Builder:
    """Operators and scales as they are added."""

    def __init__(self, largest: Mapping[str, NDArray[Any]]) -> None:
        self.largest = largest
        self.operators: list[op.Operator] = []
        self.scales: dict[str, float] = {}
        self.bits: dict[str, int] = {}

    def add(self, operator: op.Operator, scale: Any) -> None:
        self.operators.append(operator)
        if scale is not None:
            self.scales[operator.output] = float(scale)

    def int8_scale(self, stream: str) -> float:
        return self.scales[stream] * 2.0 ** self.bits[stream]

    def norm(self, source: str, module: nn.LayerNorm, output: str, added: str) -> str:
        """LayerNorm to the int16 stream, fine enough for int8 and wide enough for what is added to it."""
        scale8 = float(self.largest[f"{output}_int8"]) / INT8_LIMIT
        self.bits[output] = stream_bits(self.largest, output, added)
        scale = scale8 / 2.0 ** self.bits[output]
        params = NormParams.from_float(
            _numbers(module.weight),
            _numbers(module.bias),
            module.eps,
            in_scale=self.scales[source],
            out_scale=scale,
        )
        self.add(op.LayerNorm((source,), output, params), scale)
        return output

    def narrowed(self, stream: str) -> str:
        """The int8 form of a stream, made once."""
        name = f"{stream}_int8"
        if name not in self.scales:
            self.add(op.Narrow((stream,), name, self.bits[stream]), self.int8_scale(stream))
        return name

    def linear(self, source: str, module: nn.Linear, output: str, scale: Any) -> None:
        params = quantise_linear(
            _numbers(module.weight), _numbers(module.bias), in_scale=self.scales[source], out_scale=scale
        )
        self.add(op.Linear((source,), output, params), scale)

    def residual(
        self, source: str, module: nn.Linear, stream: str, output: str, input_limit: int = INT8_LIMIT
    ) -> None:
        """A linear layer in the stream's own scale, added to the stream."""
        params = quantise_linear(
            _numbers(module.weight),
            _numbers(module.bias),
            in_scale=self.scales[source],
            out_scale=self.scales[stream],
            limit=INT16_LIMIT,
            input_limit=input_limit,
        )
        self.add(op.Linear((source,), f"{output}_part", params), self.scales[stream])
        self.add(op.Add((stream, f"{output}_part"), output), self.scales[stream])

    def function(self, source: str, activation: Any, output: str, scale: Any) -> None:
        def real(x: NDArray[np.float64]) -> NDArray[np.float64]:
            with torch.no_grad():
                return np.asarray(activation(torch.tensor(x)))

        entries = function_table(real, self.scales[source], float(scale))
        self.add(op.Table((source,), output, entries), scale)


def _numbers(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().cpu().numpy()  # type: ignore[no-any-return]
