"""`write_onnx`: an integer program as one ONNX file, ids or images in, int32 scores out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hccs
from hccs._files import atomic
from hccs.errors import ModelError
from hccs.export.onnx_function import OPSET
from hccs.export.onnx_program.attention import Tokens, attention
from hccs.export.onnx_program.embedding import causal, embed, embed_patches
from hccs.export.onnx_program.graph import MICROSOFT, Graph, shape
from hccs.export.onnx_program.layer_norm import layer_norm
from hccs.export.onnx_program.linear import clamped, linear, narrow, table
from hccs.program import operators as op

IR_VERSION = 10
LARGEST_FILE = 2**31 - 1
"""What protobuf can hold."""


def write_onnx(program: op.Program, path: str | os.PathLike[str]) -> Path:
    """Write the program as ONNX; the file replaces an old one only once it is complete."""
    model = onnx_program(program)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(file, model.SerializeToString())
    return file


def onnx_program(program: op.Program) -> Any:
    """The ModelProto of a program.

    Inputs are `input_ids` and `attention_mask` (ones, then zeros), int64 [batch, length], and of a program
    that knows several types `token_type_ids`, which may be left out; or `pixel_values`, uint8. Outputs are
    `scores`, the program's int32 in every bit, and `logits`, the same in the float model's units. 8-bit
    values are uint8 with zero point 128, those of 16 and more bits float64, which holds them exactly.
    """
    graph = Graph()
    inputs, defaults, tokens, first = _begin(graph, program)
    made = {program.operators[0].output: first}
    attending = {False: tokens}
    for step in program.operators[1:]:
        graph.place = step.output
        if isinstance(step, op.Attention) and step.causal and True not in attending:
            attending[True] = causal(graph, tokens)
        made[step.output] = _node(graph, step, program, made, attending)
    _end(graph, program, made[program.operators[-1].output], tokens)
    return _model(graph, program, inputs, defaults)


def _begin(graph: Graph, program: op.Program) -> tuple[list[Any], list[Any], Tokens, str]:
    """The inputs, what they are when not given, the tokens, and the embedding's output."""
    describe, numpy_helper = graph.onnx.helper.make_tensor_value_info, graph.onnx.numpy_helper
    step = program.embed
    graph.place = "tokens"
    if isinstance(step, op.EmbedPatches):
        batch = graph("Shape", "pixel_values", start=0, end=1)
        sizes = graph("Concat", batch, shape(step.params.tokens), axis=0)
        everything = graph.constant(np.ones((1, 1, 1, step.params.tokens), np.uint8))
        graph.place = step.output
        images = describe("pixel_values", graph.type(np.uint8), ["batch", *step.params.image])
        return [images], [], Tokens(sizes, everything), embed_patches(graph, step, "pixel_values", batch)
    sizes = graph("Shape", "input_ids")
    mask = graph.cast(graph("Unsqueeze", "attention_mask", shape(1, 2)), np.uint8)
    graph.place = step.output
    ids = [
        describe(name, graph.type(np.int64), ["batch", "length"]) for name in ("input_ids", "attention_mask")
    ]
    # One type for all where none are given; its sizes have names of their own, since a default has one shape.
    types = numpy_helper.from_array(np.zeros((1, 1), np.int64), "token_type_ids")
    several = len(step.params.types) > 1
    if several:
        ids.append(describe(types.name, graph.type(np.int64), ["typed_batch", "typed_length"]))
    return ids, [types], Tokens(sizes, mask), embed(graph, step, "input_ids", types.name, sizes)


def _node(
    graph: Graph, step: op.Operator, program: op.Program, made: dict[str, str], attending: dict[bool, Tokens]
) -> str:
    x = made[step.inputs[0]]
    width = program.values[step.inputs[0]].width
    match step:
        case op.LayerNorm(params=norm):
            return layer_norm(graph, x, norm)
        case op.Narrow(bits=bits):
            return narrow(graph, x, bits)
        case op.Linear(params=params):
            return linear(graph, x, params, clamp=not _only_tables_read(step.output, program.operators))
        case op.Attention():
            return attention(graph, x, step, attending[step.causal], width, _most_rows(program))
        case op.Table(entries=entries):
            source = next(other for other in program.operators if other.output == step.inputs[0])
            return table(graph, x, entries, width, clamp=isinstance(source, op.Linear))
        case op.Add(limit=limit):
            total = graph("Add", x, made[step.inputs[1]])
            return total if limit is None else clamped(graph, total, limit)
        case op.First():
            rows = graph("Concat", attending[False].sizes, shape(width), axis=0)
            return graph("Gather", graph("Reshape", x, rows), np.int64(0), axis=1)
    raise AssertionError(step)  # a second embedding: no program has one


def _most_rows(program: op.Program) -> int:
    """Rows of the longest sequence that the file's runtime would take: there are no more positions."""
    embed = program.embed
    if isinstance(embed, op.EmbedPatches):
        return embed.params.tokens
    return len(embed.params.positions) - embed.first_position


def _only_tables_read(name: str, operators: Sequence[op.Operator]) -> bool:
    readers = [step for step in operators if name in step.inputs]
    return bool(readers) and all(isinstance(step, op.Table) for step in readers)


def _end(graph: Graph, program: op.Program, scores: str, tokens: Tokens) -> None:
    graph.place = "output"
    if program.per_token:
        rows = graph("Concat", tokens.sizes, shape(len(program.labels)), axis=0)
        scores = graph("Reshape", scores, rows)
        if isinstance(program.embed, op.Embed):  # an image has no padding
            real = graph("Transpose", graph("Squeeze", tokens.mask, shape(1)), perm=[0, 2, 1])
            scores = graph("Mul", scores, graph.cast(real, np.int32))
    graph.named(scores, "scores")
    logits = graph("Mul", graph.cast(scores, np.float64), np.float64(program.score_scale))
    graph.named(graph.cast(logits, np.float32), "logits")


def _model(graph: Graph, program: op.Program, inputs: list[Any], defaults: list[Any]) -> Any:
    helper = graph.onnx.helper
    tokens = ["length"] if isinstance(program.embed, op.Embed) else [program.embed.params.tokens]
    sizes = ["batch", *(tokens if program.per_token else []), len(program.labels)]
    outputs = [
        helper.make_tensor_value_info(name, graph.type(dtype), sizes)
        for name, dtype in (("scores", np.int32), ("logits", np.float32))
    ]
    made = helper.make_graph(graph.nodes, "hccs", inputs, outputs, [*defaults, *graph.constants])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(
        made,
        producer_name="hccs",
        producer_version=hccs.__version__,
        ir_version=IR_VERSION,
        opset_imports=opsets,
    )
    facts = {
        "hccs.version": hccs.__version__,
        "hccs.labels": json.dumps(program.labels),
        "hccs.score_scale": repr(program.score_scale),
        "hccs.longest_row": str(program.longest),
        "hccs.tokenizer": program.tokenizer,
    }
    helper.set_model_props(model, facts)
    if model.ByteSize() > LARGEST_FILE:
        raise ModelError(
            "a program of less than 2 GiB", f"{model.ByteSize() / 2**30:.1f} GiB", "Export a smaller model."
        )
    graph.onnx.checker.check_model(model)
    return model
