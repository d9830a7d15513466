"""An encoder and its scales as a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs.errors import ModelError
from hccs.nn.lowering.parts import (
    EVERY,
    FIRST,
    LAST,
    MEAN,
    Dense,
    Layer,
    NormedHead,
    Patches,
    PostNorm,
    PreNorm,
    Rotary,
    VectorHead,
    Words,
    as_numbers,
    bias_of,
    eps_of,
    is_rms,
    outputs_of,
    weight_of,
)
from hccs.nn.lowering.scales import ROW_BITS, TURNED_STEP, Scales
from hccs.numbers.layers import (
    INT8_LIMIT,
    INT16_LIMIT,
    INT32_LIMIT,
    LONG_ROW_LIMIT,
    EmbeddingParams,
    NormParams,
    PatchParams,
    RampParams,
    quantise_linear,
    quantise_scores,
)
from hccs.numbers.requant import Requant
from hccs.numbers.rms_norm import RmsParams
from hccs.numbers.rotary import RotateParams, rotary_table
from hccs.numbers.table import ParamTable
from hccs.program import Program
from hccs.program import operators as op
from hccs.reference.table import table as function_table


def assemble(encoder: PostNorm | PreNorm, table: ParamTable, scales: Scales, tokenizer: str = "") -> Program:
    """The program of an encoder with the table's HCCS parameters."""
    wanted = max(rows_of_table(encoder)) + 1
    if wanted != table.shape[0]:
        raise ModelError(f"a table of {wanted} layers", str(table.shape[0]), "Calibrate on this model.")
    build = Builder(scales)
    if isinstance(encoder, PreNorm):
        longest, read = _pre_norm(build, encoder, table)
    else:
        longest, read = _post_norm(build, encoder, table)
    if read is not None:
        build.scores(read, encoder.classifier)
    step = build.steps[build.operators[-1].output]
    facts = {"table": dict(table.provenance)}
    labels = encoder.labels if build.operators[-1].labelled else ()
    return Program(tuple(build.operators), labels, longest, step, build.steps, tokenizer, facts)


def _post_norm(build: Builder, encoder: PostNorm, table: ParamTable) -> tuple[int, str | None]:
    """Everything but the scores: the longest input, and what scores are computed from, if there are any."""
    tables = (as_numbers(part) for part in encoder.embedding_tables)
    build.add(op.Embed("embedded", build.embedding(*tables), encoder.first_position))
    if encoder.projection is None:
        stream = build.norm("embedded", encoder.embedding_norm, "x0")
    else:
        normed = build.narrowed(build.norm("embedded", encoder.embedding_norm, "normed"))
        build.linear(normed, encoder.projection, "x0", limit=INT16_LIMIT)
        stream = "x0"
    heads = rows_of_table(encoder)
    for i, layer in enumerate(encoder.layers):
        build.attention(i, layer, build.narrowed(stream), table, row=heads[i])
        build.residual(f"context{i}", layer.attention_output, stream, f"attended{i}", input_limit=128)
        middle = build.norm(f"attended{i}", layer.attention_norm, f"y{i}")
        build.between_norms(i, layer, build.narrowed(middle), middle, f"summed{i}")
        stream = build.norm(f"summed{i}", layer.wide_norm, f"x{i + 1}")
    longest = min(table.n, encoder.positions.num_embeddings - encoder.first_position)
    if encoder.vector is not None:
        build.vector(encoder.vector, stream)
        return longest, None
    read = build.narrowed(stream, rows=False)
    if encoder.pooler is not None:
        build.add(op.First((read,), "first"), like=read)
        build.linear("first", encoder.pooler, "pooled")
        build.function("pooled", encoder.pooler_activation, "activated")
        read = "activated"
    return longest, read


def rows_of_table(encoder: PostNorm | PreNorm) -> list[int]:
    """Which row of a table belongs to each layer: layers that share their attention share one."""
    outputs = [layer.attention_output for layer in encoder.layers]
    distinct = list(dict.fromkeys(outputs))
    return [distinct.index(output) for output in outputs]


def _pre_norm(build: Builder, model: PreNorm, table: ParamTable) -> tuple[int, str | None]:
    """As `_post_norm`, of a stack whose stream goes on without a norm."""
    longest = build.source(model.source, table)
    limit = build.scales.stream_limit
    for i, layer in enumerate(model.layers):
        stream, middle = f"x{i}", f"y{i}"
        x = build.narrowed(build.norm(stream, layer.attention_norm, f"a{i}"))
        build.attention(i, layer, x, table, i, longest, model.causal)
        build.residual(f"context{i}", layer.attention_output, stream, middle, input_limit=128, limit=limit)
        read = build.narrowed(build.norm(middle, layer.wide_norm, f"b{i}"))
        build.between_norms(i, layer, read, middle, f"x{i + 1}", limit=limit)
    final = build.norm(f"x{len(model.layers)}", model.final_norm, "final")
    if model.vector is not None:
        build.vector(model.vector, final)
        return longest, None
    if model.head is not None:
        return longest, build.normed_head(model.head, model.reads, final)
    if model.reads == EVERY and build.scales.row_exponents:
        build.vocabulary(build.narrowed(final), model.classifier)
        return longest, None
    return longest, build.one_row(build.narrowed(final, rows=False), model.reads)


def _patches(source: Patches, step: float) -> PatchParams:
    weight, bias = (as_numbers(part) for part in source.of_integers)
    projection = quantise_linear(
        weight, bias, in_scale=1.0, out_scale=step, limit=INT16_LIMIT, input_limit=128
    )
    special, positions = (
        np.clip(np.rint(as_numbers(part) / step), -INT16_LIMIT, INT16_LIMIT).astype(np.int16)
        for part in (source.special_rows, source.positions[0])
    )
    return PatchParams(projection, special, positions, source.patch, source.image)


def head_steps(scales: Scales, name: str, i: int, layer: Layer) -> NDArray[np.float64]:
    return np.repeat(scales.steps[f"{name}{i}"], layer.width // layer.heads)


def requant_of(
    i: int, layer: Layer, table: ParamTable, scales: Scales, row: int, longest: int = 0
) -> Requant:
    q, k, v = (scales.steps[f"{name}{i}"] for name in ("query", "key", "value"))
    shared = len(q) // len(k)
    return Requant.from_scales(
        q_scale=q,
        k_scale=np.repeat(k, shared),
        v_scale=np.repeat(v, shared),
        logit_scale=scales.heads(row, table, longest)[1],
        scaling=layer.scaling,
        out_scale=scales.step(f"context{i}"),
    )


SCORE_BITS = 6
"""A step of a vocabulary's scores is this much finer than one of the product with its loudest word."""

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
        self.rows: dict[str, NDArray[np.float64] | float] = {}
        """Values whose rows have exponents, and what the columns of weights that read them are scaled by."""
        self.turns: dict[Rotary, list[NDArray[np.int16]]] = {}
        """Cosines and sines, which layers share."""

    def add(self, operator: op.Operator, like: str | None = None) -> None:
        """Append; the output's step is that of the point of its name, or of the value `like`."""
        self.operators.append(operator)
        step = self.scales.steps.get(like or operator.output)
        if step is not None and np.ndim(step) == 0:
            self.steps[operator.output] = float(step)

    def norm(self, source: str, module: Any, output: str) -> str:
        """LayerNorm or RMSNorm; the identity is no operator."""
        if isinstance(module, nn.Identity):
            return source
        gamma, scales = as_numbers(module.weight), (self.steps[source], self.scales.step(output))
        made: op.Operator
        if is_rms(module):
            rms = RmsParams.from_float(gamma, eps_of(module), in_scale=scales[0], out_scale=scales[1])
            made = op.RmsNorm((source,), output, rms)
        else:
            beta = np.zeros_like(gamma) if module.bias is None else as_numbers(module.bias)
            params = NormParams.from_float(gamma, beta, module.eps, in_scale=scales[0], out_scale=scales[1])
            made = op.LayerNorm((source,), output, params)
        self.add(made)
        self.width = gamma.size
        return output

    def source(self, source: Words | Patches, table: ParamTable) -> int:
        """What writes x0; returns the longest input."""
        if isinstance(source, Patches):
            patches = _patches(source, self.scales.step("stream"))
            if patches.tokens > table.n:
                raise ModelError(
                    f"a table for the {patches.tokens} tokens of an image",
                    f"n = {table.n}",
                    "Calibrate with that n.",
                )
            self.add(op.EmbedPatches("x0", patches))
            return patches.tokens
        words = as_numbers(source.words.weight)
        if source.norm is not None:
            self.add(op.Embed("embedded", self.embedding(words, None, None)))
            self.norm("embedded", source.norm, "x0")
            return table.n
        limit = INT16_LIMIT if self.scales.stream_limit == INT16_LIMIT else None  # None: int32
        if source.positions is None:
            self.add(op.Embed("x0", self.embedding(words, None, None), limit=limit))
            return table.n
        params = self.embedding(words, as_numbers(source.positions.weight), np.zeros((1, words.shape[1])))
        self.add(op.Embed("x0", params, limit=limit))
        return min(table.n, source.positions.num_embeddings)

    def one_row(self, source: str, reads: str) -> str:
        """The row that a sequence's scores are computed from, or all rows."""
        if reads == EVERY:
            return source
        taken = {FIRST: op.First, LAST: op.Last}[reads]
        self.add(taken((source,), reads), like=source)
        return reads

    def normed_head(self, head: NormedHead, reads: str, final: str) -> str:
        """Pooling, a dense layer, an activation and LayerNorm: what scores are computed from."""
        if reads == MEAN:
            self.add(op.Pool((final,), MEAN, "mean", divided=True), like=final)
        read = self.narrowed(MEAN if reads == MEAN else self.one_row(final, reads), rows=True)
        self.linear(read, head.dense, "dense", limit=INT16_LIMIT)
        self.ramp("dense", head.activation, "active")
        return self.narrowed(self.norm("active", head.norm, "normed"), rows=False)

    def ramp(self, source: str, activation: Any, output: str) -> None:
        """An activation on int16, in one step."""
        params = RampParams.from_function(real_function(activation), self.steps[source])
        self.add(op.Ramp((source,), output, params))
        self.steps[output] = self.steps[source]

    def vocabulary(self, source: str, module: Dense) -> None:
        """int32 scores of one step in all rows, whatever their exponents."""
        weight, bias = as_numbers(weight_of(module)), as_numbers(bias_of(module))
        loudest = float(abs(weight).max()) / INT8_LIMIT
        step = self.steps[source] * loudest / 2.0**SCORE_BITS
        params = quantise_linear(
            weight, bias, in_scale=self.steps[source], out_scale=step, limit=INT32_LIMIT, row_exponents=True
        )
        self.add(op.Linear((source,), "scores", params))
        self.steps["scores"] = step

    def embedding(self, words: Any, positions: Any, types: Any) -> EmbeddingParams:
        return EmbeddingParams.from_float(
            words, positions, types, self.scales.word_step, self.scales.word_shift
        )

    def scores(self, source: str, module: Dense) -> None:
        weight, bias = as_numbers(weight_of(module)), as_numbers(bias_of(module))
        params, step = quantise_scores(weight, bias, in_scale=self.steps[source])
        self.add(op.Linear((source,), "scores", params))
        self.steps["scores"] = step

    def narrowed(self, stream: str, rows: bool | None = None) -> str:
        """The int8 form of a stream, made once; with row exponents unless told otherwise."""
        rows = self.scales.row_exponents if rows is None else rows
        name = f"{stream}_int8"
        if name not in self.steps:
            if rows:
                self.add(op.NarrowRows((stream,), name, self.scales.channels.get(stream)))
                self.steps[name] = self.steps[stream] * 2**ROW_BITS
                self.rows[name] = self.scales.columns(stream)
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
        self.rows[name] = 1.0
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
            as_numbers(weight_of(module))[every] * self.rows.get(source, 1.0),
            as_numbers(bias_of(module))[every],
            in_scale=self.steps[source],
            out_scale=self.scales.steps[output],
            limit=limit,
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), output, params))

    def attention(
        self,
        i: int,
        layer: Layer,
        source: str,
        table: ParamTable,
        row: int,
        longest: int = 0,
        causal: bool = False,
    ) -> None:
        """The dense layers that write q, k and v as one, and integer attention on them."""
        names, rotary = ("query", "key", "value"), layer.rotary
        heads = np.concatenate([self.scales.steps[f"{name}{i}"] for name in names])
        finer = heads * (1.0 if rotary is None else TURNED_STEP)
        written = finer.copy()
        if layer.head_norms is not None:
            raw = np.concatenate([self.scales.steps[f"{name}{i}"] for name in ("raw_query", "raw_key")])
            written[: len(raw)] = raw
        params = quantise_linear(
            np.concatenate([as_numbers(weight_of(module)) for module in layer.qkv])
            * self.rows.get(source, 1.0),
            np.concatenate([as_numbers(bias_of(module)) for module in layer.qkv]),
            in_scale=self.steps[source],
            out_scale=np.repeat(written, layer.width // layer.heads),
            limit=INT8_LIMIT if rotary is None else INT16_LIMIT,
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), f"qkv{i}", params))
        read = f"qkv{i}"
        if layer.head_norms is not None:
            q_norm, k_norm = layer.head_norms
            norms = [q_norm] * layer.heads + [k_norm] * (layer.kv_heads or layer.heads)
            each = [
                RmsParams.from_float(as_numbers(norm.weight), eps_of(norm), in_scale=before, out_scale=after)
                for norm, before, after in zip(norms, written, finer, strict=False)  # v has no norm
            ]
            read = f"normed{i}"
            self.add(op.NormHeads.stacked(f"qkv{i}", read, each))
        if rotary is not None:
            if rotary not in self.turns:
                self.turns[rotary] = [rotary_table(part) for part in rotary.tables(longest)]
            cosine, sine = self.turns[rotary]
            turn = RotateParams.from_float(cosine, sine, in_scale=finer, out_scale=heads, heads=layer.heads)
            self.add(op.Rotate((read,), f"turned{i}", turn))
            read = f"turned{i}"
        requant = requant_of(i, layer, table, self.scales, row, longest)
        theta = self.scales.heads(row, table, longest)[0]
        self.add(op.Attention((read,), f"context{i}", theta, requant, causal, layer.kv_heads, layer.window))

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
            as_numbers(weight_of(module)) * self.rows.get(source, 1.0),
            as_numbers(bias_of(module)),
            in_scale=self.steps[source],
            out_scale=self.steps[stream],
            limit=limit or INT16_LIMIT,
            input_limit=input_limit,
            row_exponents=source in self.rows,
        )
        self.add(op.Linear((source,), f"{output}_part", params))
        self.add(op.Add((stream, f"{output}_part"), output, limit), like=stream)

    def between_norms(
        self, i: int, layer: Layer, source: str, stream: str, output: str, limit: int | None = None
    ) -> None:
        """Wide layer, activation and narrow layer onto the stream; outliers by a path of their own."""
        wide, active = f"wide{i}", f"active{i}"
        if self.scales.row_exponents:
            self.linear(source, layer.wide, wide, limit=INT16_LIMIT)
            if layer.gate is None:
                self.ramp(wide, layer.activation, active)
            else:
                self.linear(source, layer.gate, f"gate{i}", limit=INT16_LIMIT)
                self.ramp(f"gate{i}", layer.activation, f"ramp{i}")
                bits = self.scales.bits[active]
                self.add(op.Multiply((f"ramp{i}", wide), active, bits, LONG_ROW_LIMIT))
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
