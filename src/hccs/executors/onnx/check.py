"""Whether ONNX Runtime on this machine returns the program's scores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hccs._extras import require
from hccs.program import IntegerModel

LENGTH = 64
"""The most tokens of a random sequence."""


def equal_scores(path: str | os.PathLike[str], model: IntegerModel, count: int = 32, seed: int = 0) -> int:
    """How many of `count` random sequences (or images) get the same scores in every bit."""
    session = session_of(path)
    given = random_inputs(model, count, np.random.default_rng(seed))
    got = session.run(["scores"], given)[0]
    expected = model(*given.values()).scores
    return int((got == expected).reshape(count, -1).all(1).sum())


def session_of(path: str | os.PathLike[str], threads: int = 0) -> Any:
    """ONNX Runtime on the file, with all threads or as many as given."""
    runtime = require("onnxruntime", "onnx", "to run the exported model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # an input with a default is what we want
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


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
