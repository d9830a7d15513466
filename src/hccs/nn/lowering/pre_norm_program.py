"""A pre-norm stack and its scales as a program."""

from __future__ import annotations

import numpy as np

from hccs.errors import ModelError
from hccs.nn.lowering.assembling import Builder, facts_of
from hccs.nn.lowering.encoder import as_numbers, bias_of, weight_of
from hccs.nn.lowering.pre_norm import Block, Patches, PreNorm, Words
from hccs.nn.lowering.scales import Scales
from hccs.numbers.embeddings import EmbeddingParams
from hccs.numbers.multipliers import INT16_LIMIT, quantise_linear, quantise_scores
from hccs.numbers.patches import PatchParams
from hccs.numbers.table import ParamTable
from hccs.program import Program
from hccs.program import operators as op


def assemble_pre_norm(model: PreNorm, table: ParamTable, scales: Scales, tokenizer: str = "") -> Program:
    """The program of a stack with the table's HCCS parameters."""
    build = Builder(scales)
    if isinstance(model.source, Words):
        longest = min(table.n, model.source.positions.num_embeddings)
        build.add(_embed(model.source, scales))
    else:
        patches = _patches(model.source, scales)
        longest = patches.params.tokens
        if longest > table.n:
            raise ModelError(
                f"a table for the {longest} tokens of an image", f"n = {table.n}", "Calibrate with that n."
            )
        build.add(patches)
    stream = "x0"
    for i, layer in enumerate(model.layers):
        stream = _layer(build, i, layer, table, stream, model.causal)
    read = build.narrowed(build.norm(stream, model.final_norm, "final"))
    if model.first_only:
        build.add(op.First((read,), "first"), like=read)
        read = "first"
    scores, score_scale = quantise_scores(
        as_numbers(weight_of(model.classifier)),
        as_numbers(bias_of(model.classifier)),
        in_scale=build.steps[read],
    )
    build.add(op.Linear((read,), "scores", scores))
    return Program(
        tuple(build.operators),
        model.labels,
        longest,
        score_scale,
        {**build.steps, "scores": score_scale},
        tokenizer,
        facts_of(table, scales),
    )


def _embed(source: Words, scales: Scales) -> op.Embed:
    words, positions = (as_numbers(part.weight) for part in (source.words, source.positions))
    types = np.zeros((1, words.shape[1]))
    params = EmbeddingParams.from_float(words, positions, types, scales.word_step, scales.word_shift)
    return op.Embed("x0", params, limit=INT16_LIMIT)


def _patches(source: Patches, scales: Scales) -> op.EmbedPatches:
    step = scales.step("stream")
    weight, bias = (as_numbers(part) for part in source.of_integers)
    projection = quantise_linear(
        weight, bias, in_scale=1.0, out_scale=step, limit=INT16_LIMIT, input_limit=128
    )
    special, positions = (
        np.clip(np.rint(as_numbers(part) / step), -INT16_LIMIT, INT16_LIMIT).astype(np.int16)
        for part in (source.special_rows, source.positions[0])
    )
    return op.EmbedPatches("x0", PatchParams(projection, special, positions, source.patch, source.image))


def _layer(build: Builder, i: int, layer: Block, table: ParamTable, stream: str, causal: bool) -> str:
    x = build.narrowed(build.norm(stream, layer.attention_norm, f"a{i}"))
    build.attention(i, layer, layer.qkv, x, table, causal)
    build.residual(f"context{i}", layer.attention_output, stream, f"y{i}", input_limit=128, limit=INT16_LIMIT)
    middle = build.narrowed(build.norm(f"y{i}", layer.wide_norm, f"b{i}"))
    build.between_norms(i, layer, middle, f"y{i}", f"x{i + 1}", limit=INT16_LIMIT)
    return f"x{i + 1}"
