"""The page of `hccs export wasm --demo`: passages, their vectors from Python, and a search over them."""

from __future__ import annotations

import json
from typing import Any

from hccs.errors import ModelError
from hccs.program import IntegerModel
from hccs.program.program import EMBEDDINGS
from hccs.text import Encoder


def pages(model: IntegerModel, sources: Any) -> dict[str, str | bytes]:
    """The files of the page, by name."""
    settings = model.program.text
    if settings is None or settings.kind != EMBEDDINGS:
        raise ModelError("a model of embeddings for --demo", "one with labels", "Leave --demo out.")
    passages = sources.joinpath("passages.txt").read_text(encoding="utf-8").splitlines()
    vectors = Encoder(model).encode(passages, out="int16")
    return {
        "index.html": sources.joinpath("index.html").read_text(encoding="utf-8"),
        "passages.json": json.dumps(passages),
        "passages.bin": vectors.astype("<i2").tobytes(),
        "passages-license.txt": sources.joinpath("passages-license.txt").read_text(encoding="utf-8"),
    }
