"""An encoder and its scales as a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.errors import ModelError
from hccs.nn.lowering.encoder import (
    Dense,
    Encoder,
    Layer,
    VectorHead,
    as_numbers,
    bias_of,
    outputs_of,
    weight_of,
)
from hccs.nn.lowering.pre_norm import Block, PreNorm
from hccs.nn.lowering.scales import ROW_BITS, Scales
from hccs.numbers.embeddings import EmbeddingParams
from hccs.numbers.layer_norm import NormParams
from hccs.numbers.multipliers import INT8_LIMIT, INT16_LIMIT, quantise_linear, quantise_scores
from hccs.numbers.ramp import RampParams
from hccs.numbers.requant import Requant
from hccs.numbers.table import ParamTable
from hccs.program import Program
from hccs.program import operators as op
from hccs.reference.table import table as function_table

if TYPE_CHECKING:
    from numpy.typing import NDArray


def assemble(encoder: Encoder | PreNorm, table: ParamTable, scales: Scales, tokenizer: str = "") -> Program:
    """The program of an encoder with the table's HCCS parameters."""
    if len(encoder.layers) != table.shape[0]:
        raise ModelError(
            f"a table of {len(encoder.layers)} layers", str(table.shape[0]), "Calibrate on this model."
        )
    if isinstance(encoder, PreNorm):
        from hccs.nn.lowering.pre_norm_program import assemble_pre_norm  # it builds as this module does

        return assemble_pre_norm(encoder, table, scales, tokenizer)
    build = Builder(scales)
    words, positions, types = (as_numbers(part) for part in encoder.embedding_tables)
    params = EmbeddingParams.from_float(words, positions, types, scales.word_step, scales.word_shift)
    build.add(op.Embed("embedded", params, encoder.first_position))
    stream = build.norm("embedded", encoder.embedding_norm, "x0")
    for i, layer in enumerate(encoder.layers):
        stream = _layer(build, i, layer, table, stream)
    if encoder.vector is not None:
        build.vector(encoder.vector, stream)
        return build.program(
            (), _longest(encoder, table), 1 / INT16_LIMIT, tokenizer, facts_of(table, scales)
        )
    assert encoder.classifier is not None
    read = build.narrowed(stream, rows=False)
    if encoder.pooler is not None:
        build.add(op.First((read,), "first"), like=read)
        build.linear("first", encoder.pooler, "pooled")
        build.function("pooled", encoder.pooler_activation, "activated")
        read = "activated"
    head = encoder.classifier
    scores, score_scale = quantise_scores(
        as_numbers(weight_of(head)), as_numbers(bias_of(head)), in_scale=build.steps[read]
    )
    build.add(op.Linear((read,), "scores", scores))
    build.steps["scores"] = score_scale
    longest = _longest(encoder, table)
    return build.program(encoder.labels, longest, score_scale, tokenizer, facts_of(table, scales))


def _longest(encoder: Encoder, table: ParamTable) -> int:
    return min(table.n, encoder.positions.num_embeddings - encoder.first_position)


def _layer(build: Builder, i: int, layer: Layer, table: ParamTable, stream: str) -> str:
    build.attention(i, layer, (layer.query, layer.key, layer.value), build.narrowed(stream), table)
    build.residual(f"context{i}", layer.attention_output, stream, f"attended{i}", input_limit=128)
    middle = build.norm(f"attended{i}", layer.attention_norm, f"y{i}")
    build.between_norms(i, layer, build.narrowed(middle), middle, f"summed{i}")
    return build.norm(f"summed{i}", layer.output_norm, f"x{i + 1}")


def facts_of(table: ParamTable, scales: Scales) -> dict[str, Any]:
    """Where a program comes from: the table's provenance, and the steps that values have one of per head."""
    per_head = {name: steps.tolist() for name, steps in scales.steps.items() if np.ndim(steps)}
    facts = {"table": dict(table.provenance), "steps_per_head": per_head}
    apart = {str(i): channels.tolist() for i, channels in scales.outliers.items()}
    return {**facts, "channels_apart": apart} if apart else facts


def head_steps(scales: Scales, name: str, i: int, layer: Layer | Block) -> NDArray[np.float64]:
    return np.repeat(scales.steps[f"{name}{i}"], layer.width // layer.heads)


def requant_of(i: int, layer: Layer | Block, table: ParamTable, scales: Scales) -> Requant:
    return Requant.from_scales(
        q_scale=scales.steps[f"query{i}"],
        k_scale=scales.steps[f"key{i}"],
        v_scale=scales.steps[f"value{i}"],
        logit_scale=table.scale[i],
        scaling=layer.scaling,
        out_scale=scales.step(f"context{i}"),
    )


TANH_REACH = 8.0
"""An activation behind pooling is constant, or the identity, beyond it."""


def _reach(W: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """A vector of LayerNorm outputs has a length of about the square root of its channels."""
    return float((np.linalg.norm(W, axis=1) * np.sqrt(W.shape[1]) + abs(b)).max())


def activation_table(activation: Any, in_scale: float, out_scale: float) -> NDArray[np.int8]:
    """The 256 integers of a torch function of one value between two scales; any other is refused."""
    return function_table(real_function(activation), in_scale, out_scale)


def real_function(activation: Any) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """A torch function of one value at a time on arrays; any other is refused when it is called."""

    def real(x: NDArray[np.float64]) -> NDArray[np.float64]:
        with torch.no_grad():
            values = torch.tensor(x)
            try:
                found, of_some = activation(values), activation(values[::2])
            except (RuntimeError, ValueError, TypeError) as error:
                raise _no_table(activation) from error
        if found.shape != values.shape or not torch.allclose(
            found[::2], of_some, rtol=1e-9, atol=1e-12, equal_nan=True
        ):
            raise _no_table(activation)
        return np.asarray(found)

    return real


def _no_table(activation: Any) -> ModelError:
    name = getattr(activation, "__name__", type(activation).__name__)
    return ModelError(
        "an activation of one value at a time, for a table of 256",
        f"{name}, which mixes channels",
        "Gated activations and softmax have no table.",
    )


class Builder:
    """Operators as they are added, and the step of every value they write."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.operators: list[op.Operator] = []
        self.steps: dict[str, float] = {}
        self.rows: set[str] = set()
        """Values whose rows have exponents."""

    def add(self, operator: op.Operator, like: str | None = None) -> None:
        """Append; the output's step is that of the point of its name, or of the value `like`."""
        self.operators.append(operator)
        step = self.scales.steps.get(like or operator.output)
        if step is not None and np.ndim(step) == 0:
            self.steps[operator.output] = float(step)

    def norm(self, source: str, module: nn.LayerNorm, output: str) -> str:
        params = NormParams.from_float(
            as_numbers(module.weight),
            as_numbers(module.bias),
            module.eps,
            in_scale=self.steps[source],
            out_scale=self.scales.step(output),
        )
        self.add(op.LayerNorm((source,), output, params))
        self.width = params.channels
        return output

    def program(
        self, labels: tuple[str, ...], longest: int, score_scale: float, tokenizer: str, facts: dict[str, Any]
    ) -> Program:
        return Program(
            tuple(self.operators), labels, longest, score_scale, dict(self.steps), tokenizer, facts
        )

    def narrowed(self, stream: str, rows: bool | None = None) -> str:
        """The int8 form of a stream, made once; with row exponents unless told otherwise."""
        rows = self.scales.row_exponents if rows is None else rows
        name = f"{stream}_int8"
        if name not in self.steps:
            if rows:
                self.add(op.NarrowRows((stream,), name))
                self.steps[name] = self.steps[stream] * 2**ROW_BITS
                self.rows.add(name)
            else:
                self.add(op.Narrow((stream,), name, self.scales.bits[stream]))
        return name

    def vector(self, head: VectorHead, stream: str) -> None:
        """Pooling, dense layers and the unit vector."""
        if head.pooling == "first":
            self.add(op.First((stream,), "pooled"), like=stream)
        else:
            self.add(op.Pool((stream,), "pooled", head.pooling, divided=bool(head.dense)), like=stream)
        read, dims = "pooled", 0
        for i, (module, activation) in enumerate(head.dense):
            read, dims = self._dense(i, module, activation, read), outputs_of(module)
        width = dims or self.width
        self.add(op.Unit((read,), "vector", width))
        self.steps["vector"] = 1 / INT16_LIMIT

    def _dense(self, i: int, module: Dense, activation: Any, source: str) -> str:
        """A dense layer on a pooled int16 row; its range is what its weights could reach, at most."""
        name = f"{source}_int8"
        self.add(op.NarrowRows((source,), name))
        self.steps[name] = self.steps[source] * 2**ROW_BITS
        self.rows.add(name)
        W, b = as_numbers(weight_of(module)), as_numbers(bias_of(module))
        out = f"dense{i}"
        step = float(self.scales.step(out)) if out in self.scales.steps else _reach(W, b) / INT16_LIMIT
        params = quantise_linear(
            W, b, in_scale=self.steps[name], out_scale=step, limit=INT16_LIMIT, row_exponents=True
        )
        self.add(op.Linear((name,), out, params))
        self.steps[out] = step
        if activation is None or isinstance(activation, nn.Identity):
            return out
        bits = next(b for b in range(16) if INT8_LIMIT * 2.0**b * step >= TANH_REACH)
        self.add(op.Narrow((out,), f"{out}_int8", bits))
        self.steps[f"{out}_int8"] = step * 2**bits
        entries = activation_table(activation, self.steps[f"{out}_int8"], 1 / INT8_LIMIT)
        self.add(op.Table((f"{out}_int8",), f"{out}_active", entries))
        self.steps[f"{out}_active"] = 1 / INT8_LIMIT
        return f"{out}_active"

    def linear(
        self,
        source: str,
        module: Dense,
        output: str,
        channels: NDArray[np.int64] | None = None,
        limit: int = INT8_LIMIT,
    ) -> None:
        """A dense layer from one int8 value to another, or some of its output channels."""
        every = slice(None) if channels is None else channels
        params = quantise_linear(
            as_numbers(weight_of(module))[every],
            as_numbers(bias_of(module))[every],
            in_scale=self.steps[source],
            out_scale=self.scales.step(output),
            limit=limit,
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), output, params))

    def attention(
        self,
        i: int,
        layer: Layer | Block,
        modules: Sequence[Dense],
        source: str,
        table: ParamTable,
        causal: bool = False,
    ) -> None:
        """The dense layers that write q, k and v as one, and integer attention on them."""
        names = ("query", "key", "value")
        params = quantise_linear(
            np.concatenate([as_numbers(weight_of(module)) for module in modules]),
            np.concatenate([as_numbers(bias_of(module)) for module in modules]),
            in_scale=self.steps[source],
            out_scale=np.concatenate([head_steps(self.scales, name, i, layer) for name in names]),
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), f"qkv{i}", params))
        requant = requant_of(i, layer, table, self.scales)
        self.add(op.Attention((f"qkv{i}",), f"context{i}", table.layer(i), requant, causal))

    def residual(
        self,
        source: str,
        module: Dense,
        stream: str,
        output: str,
        input_limit: int = INT8_LIMIT,
        limit: int | None = None,
    ) -> None:
        """A linear layer in the stream's own scale, added to the stream; the sum is clamped to a limit."""
        params = quantise_linear(
            as_numbers(weight_of(module)),
            as_numbers(bias_of(module)),
            in_scale=self.steps[source],
            out_scale=self.steps[stream],
            limit=INT16_LIMIT,
            input_limit=input_limit,
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), f"{output}_part", params))
        self.add(op.Add((stream, f"{output}_part"), output, limit), like=stream)

    def between_norms(
        self, i: int, layer: Layer | Block, source: str, stream: str, output: str, limit: int | None = None
    ) -> None:
        """Wide layer, activation and narrow layer onto the stream; outliers by a path of their own."""
        wide, active = f"wide{i}", f"active{i}"
        if self.scales.row_exponents:
            self.linear(source, layer.wide, wide, limit=INT16_LIMIT)
            ramp = RampParams.from_function(real_function(layer.activation), self.steps[wide])
            self.add(op.Ramp((wide,), active, ramp))
            self.residual(self.narrowed(active), layer.narrow, stream, output, limit=limit)
            return
        if i not in self.scales.outliers:
            self.linear(source, layer.wide, wide)
            self.function(wide, layer.activation, active)
            self.residual(active, layer.narrow, stream, output, limit=limit)
            return
        apart = self.scales.outliers[i]
        rest = np.delete(np.arange(outputs_of(layer.wide)), apart)
        weight, bias = as_numbers(weight_of(layer.narrow)), as_numbers(bias_of(layer.narrow))
        parts = []
        for channels, suffix in ((rest, ""), (apart, "_few")):
            self.linear(source, layer.wide, wide + suffix, channels)
            self.function(wide + suffix, layer.activation, active + suffix)
            params = quantise_linear(
                weight[:, channels],
                np.zeros_like(bias) if suffix else bias,
                in_scale=self.steps[active + suffix],
                out_scale=self.steps[stream],
                limit=INT16_LIMIT,
            )
            parts.append(f"{output}_few" if suffix else f"{output}_rest")
            self.add(op.Linear((active + suffix,), parts[-1], params), like=stream)
        # The parts first: their sum is the layer's own output, which int16 of this step reaches.
        self.add(op.Add((parts[0], parts[1]), f"{output}_part", INT16_LIMIT), like=stream)
        self.add(op.Add((stream, f"{output}_part"), output, limit), like=stream)

    def function(self, source: str, activation: Any, output: str) -> None:
        entries = activation_table(activation, self.steps[source], self.scales.step(output))
        self.add(op.Table((source,), output, entries))
