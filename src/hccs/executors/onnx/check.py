"""Whether ONNX Runtime on this machine returns the program's answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hccs._extras import require
from hccs.errors import HccsError, ModelError
from hccs.executors.onnx.model import onnx_program, replace_file
from hccs.program import IntegerModel

LENGTH = 64
"""The most tokens of a random sequence."""

COUNT = 32
"""Random inputs that a file is checked on."""

PRECISION = "session.x64quantprecision"
"""ONNX Runtime's option for exact products of bytes on x86 CPUs without VNNI."""


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
