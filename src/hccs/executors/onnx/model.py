"""`write_onnx`: an integer program as one ONNX file, ids or images in, scores or unit vectors out.

`write_checked` compares the answers of ONNX Runtime on this machine with the program's first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hccs
from hccs._extras import require
from hccs._files import atomic
from hccs.errors import HccsError, ModelError
from hccs.executors.onnx.attention import attention
from hccs.executors.onnx.embedding import (
    embed,
    embed_patches,
    last,
    multiply,
    pool,
    ramp,
    rotate,
    unit,
    within,
)
from hccs.executors.onnx.graph import MICROSOFT, OPSET, Building, shape
from hccs.executors.onnx.layer_norm import layer_norm, norm_heads, rms_norm
from hccs.executors.onnx.linear import clamped, linear, linear_rows, narrow, narrow_rows, table
from hccs.program import IntegerModel
from hccs.program import operators as op
from hccs.program.plan import require_known
from hccs.program.program import Program

IR_VERSION = 10
LARGEST_FILE = 2**31 - 1
"""What protobuf can hold."""

LENGTH = 64
"""The most tokens of a random sequence."""

COUNT = 32
"""Random inputs that a file is checked on."""

PRECISION = "session.x64quantprecision"
"""ONNX Runtime's option for exact products of bytes on x86 CPUs without VNNI."""


def write_onnx(program: Program, path: str | os.PathLike[str]) -> Path:
    """Write the program as ONNX; the file replaces an old one only once it is complete."""
    return replace_file(path, onnx_program(program).SerializeToString())


def replace_file(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file, into a folder that is made where there is none."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(file, content)
    return file


def onnx_program(program: Program) -> Any:
    """The ModelProto of a program.

    Inputs are `input_ids` and `attention_mask` (ones, then zeros), int64 [batch, length], and, for a program
    that knows several types, `token_type_ids`, which may be left out; or `pixel_values`, uint8. Outputs are
    `scores`, the program's int32 in every bit, and `logits`, the same in the float model's units; where it
    ends in unit vectors `vectors`, int16, and `embeddings`, the same in float32. 8-bit values are uint8 with
    zero point 128, those of 16 and more bits float64, which holds them exactly.
    """
    building = Building(program)
    for step in program.operators:
        require_known(step, CODE, "ONNX")
        building.graph.place = step.output
        building.made[step.output] = CODE[type(step)](building, step)
    _end(building)
    return _model(building)


def _linear(building: Building, step: op.Linear) -> str:
    if step.inputs[0] in building.exponents:
        return linear_rows(building, step)
    readers = [other for other in building.program.operators if step.output in other.inputs]
    unclamped = bool(readers) and all(type(other) in CLAMPS_INPUT for other in readers)
    if unclamped:
        building.unclamped.add(step.output)
    return linear(building.graph, building.made[step.inputs[0]], step.params, clamp=not unclamped)


def _attention(building: Building, step: op.Attention) -> str:
    tokens, (name,) = building.tokens, step.inputs
    if step.reach != (op.UNLIMITED, op.UNLIMITED):
        if step.reach not in building.tokens_within:
            building.tokens_within[step.reach] = within(building.graph, tokens, *step.reach)
        tokens = building.tokens_within[step.reach]
    rows = building.program.embed.most_rows or step.theta.max_columns  # there are no positions for more
    return attention(building.graph, building.made[name], step, tokens, building.width(name), rows)


def _table(building: Building, step: op.Table) -> str:
    (name,) = step.inputs
    clamp = name in building.unclamped
    return table(building.graph, building.made[name], step.entries, building.width(name), clamp=clamp)


def _add(building: Building, step: op.Add) -> str:
    total = building.graph("Add", *(building.made[name] for name in step.inputs))
    return total if step.limit is None else clamped(building.graph, total, step.limit)


def _first(building: Building, step: op.First) -> str:
    graph, (name,) = building.graph, step.inputs
    if name in building.exponents:
        e = graph("Reshape", building.exponents[name], building.tokens.sizes)
        building.exponents[step.output] = graph("Gather", e, np.int64(0), axis=1)
    rows = graph("Concat", building.tokens.sizes, shape(building.width(name)), axis=0)
    return graph("Gather", graph("Reshape", building.made[name], rows), np.int64(0), axis=1)


CODE: dict[type[op.Operator], Callable[[Building, Any], str]] = {
    op.Embed: embed,
    op.EmbedPatches: embed_patches,
    op.LayerNorm: lambda to, step: layer_norm(to.graph, to.made[step.inputs[0]], step.params),
    op.RmsNorm: lambda to, step: rms_norm(to.graph, to.made[step.inputs[0]], step.params),
    op.Narrow: lambda to, step: narrow(to.graph, to.made[step.inputs[0]], step.bits),
    op.NarrowRows: narrow_rows,
    op.Linear: _linear,
    op.NormHeads: lambda to, step: norm_heads(
        to.graph, to.made[step.inputs[0]], step.heads, to.width(step.inputs[0])
    ),
    op.Rotate: rotate,
    op.Attention: _attention,
    op.Table: _table,
    op.Ramp: ramp,
    op.Add: _add,
    op.Multiply: multiply,
    op.First: _first,
    op.Last: last,
    op.Pool: pool,
    op.Unit: unit,
}
"""The nodes of an operator: added to the graph, and the name of what they make."""

CLAMPS_INPUT = frozenset({op.Table})
"""Operators whose nodes take -128 for -127, so that the layer before them need not clamp."""


def _outputs(program: Program) -> tuple[tuple[str, Any], tuple[str, Any]]:
    """The names and types of the answer in integers and in float32."""
    if program.values[program.operators[-1].output].bits == 32:
        return ("scores", np.int32), ("logits", np.float32)
    return ("vectors", np.int16), ("embeddings", np.float32)


def _end(building: Building) -> None:
    graph, program, tokens = building.graph, building.program, building.tokens
    last = program.operators[-1].output
    (integers, dtype), (reals, _) = _outputs(program)
    graph.place = "output"
    answer = building.made[last] if program.labels else graph.cast(building.made[last], np.int32)
    if program.per_token:
        rows = graph("Concat", tokens.sizes, shape(building.width(last)), axis=0)
        answer = graph("Reshape", answer, rows)
        if program.embed.image is None:  # an image has no padding
            real = graph("Transpose", graph("Squeeze", tokens.mask, shape(1)), perm=[0, 2, 1])
            answer = graph("Mul", answer, graph.cast(real, np.int32))
    graph.named(answer if program.labels else graph.cast(answer, dtype), integers)
    scaled = graph("Mul", graph.cast(answer, np.float64), np.float64(program.score_scale))
    graph.named(graph.cast(scaled, np.float32), reals)


def _model(building: Building) -> Any:
    graph, program = building.graph, building.program
    helper = graph.onnx.helper
    rows = "length" if program.embed.image is None else program.rows
    sizes = ["batch", *([rows] if program.per_token else []), building.width(program.operators[-1].output)]
    outputs = [
        helper.make_tensor_value_info(name, graph.type(dtype), sizes) for name, dtype in _outputs(program)
    ]
    made = helper.make_graph(
        graph.nodes, "hccs", building.inputs, outputs, [*building.defaults, *graph.constants]
    )
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


def write_checked(model: IntegerModel, path: str | os.PathLike[str]) -> tuple[Path, bool]:
    """Write a model as ONNX, and tell whether this machine needs `PRECISION` = 1 for it.

    ONNX Runtime runs it first: unless its answers are the model's in every bit nothing is written.
    """
    made = onnx_program(model.program).SerializeToString()
    same = 0
    for precise in (False, True):
        try:
            same = equal_scores(made, model, precise=precise)
        except HccsError:
            raise
        except Exception as error:  # ONNX Runtime's have no other base
            raise ModelError(
                "a graph that ONNX Runtime runs",
                str(error).splitlines()[0],
                "No file was written; report it with the model.",
            ) from error
        if same == COUNT:
            return replace_file(path, made), precise
    raise ModelError(
        f"the model's answers to {COUNT} random inputs in every bit",
        f"{same} of {COUNT} in ONNX Runtime",
        "No file was written; report it with the model and this CPU's name.",
    )


def equal_scores(
    file: str | os.PathLike[str] | bytes,
    model: IntegerModel,
    count: int = COUNT,
    seed: int = 0,
    precise: bool = False,
) -> int:
    """How many of `count` random sequences (or images) get the same answer in every bit."""
    session = session_of(file, precise=precise)
    given = random_inputs(model, count, np.random.default_rng(seed))
    got = session.run([session.get_outputs()[0].name], given)[0]
    expected = model(*given.values()).scores
    return int((got == expected).reshape(count, -1).all(1).sum())


def session_of(file: str | os.PathLike[str] | bytes, threads: int = 0, precise: bool = False) -> Any:
    """ONNX Runtime on a file or its bytes, with all threads or as many as given."""
    runtime = require("onnxruntime", "onnx", "to run the exported model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # an input with a default is what we want
    if precise:
        options.add_session_config_entry(PRECISION, "1")
    given = file if isinstance(file, bytes) else str(file)
    return runtime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def random_inputs(model: IntegerModel, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Images, or ids of random lengths with masks and types: by the names of the file's inputs."""
    embed = model.program.embed
    if embed.image is not None:
        return {"pixel_values": rng.integers(0, 256, (count, *embed.image)).astype(np.uint8)}
    n = min(model.program.longest, LENGTH)
    lengths = rng.integers(1, n + 1, count)
    lengths[0] = n
    mask = (np.arange(n) < lengths[:, None]).astype(np.int64)
    given = {
        "input_ids": rng.integers(0, embed.vocabulary, (count, n)) * mask,
        "attention_mask": mask,
    }
    if embed.type_count > 1:
        given["token_type_ids"] = rng.integers(0, embed.type_count, (count, n))
    return given
