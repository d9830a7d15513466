"""The first half of `hccs demo`: search movie reviews by meaning with the model that ships. No torch."""

from __future__ import annotations

import csv
import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hccs

MODEL = "all-MiniLM-L6-v2"
REVIEWS = Path(__file__).parent / "movies" / "dev.tsv"
QUERIES = (
    "the actors are wonderful",
    "a boring story that never ends",
    "beautiful pictures of nature",
)
SHOWN = 3
TIMES = 15


@dataclass(frozen=True)
class Found:
    """The best reviews for a query, with their cosines."""

    query: str
    reviews: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Search:
    """What the demo found, the speed, and the model's fingerprint."""

    found: tuple[Found, ...]
    reviews: int
    per_second: float
    query_ms: float
    """A query, text to vector: the median of several."""
    onnx_ms: float | None
    """The same program, exported, in ONNX Runtime; None where that is not installed."""
    fingerprint: str


def search(say: Callable[[str], None] = print) -> Search:
    """Embed the reviews that ship and rank them for every query."""
    encoder = hccs.Encoder.load(MODEL)
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        reviews = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    say(f"{len(reviews)} movie reviews to vectors with {MODEL}, in integers …")
    start = time.perf_counter()
    vectors = encoder.encode(reviews, out="int16")
    seconds = time.perf_counter() - start
    found = tuple(_ranked(encoder, query, reviews, vectors) for query in QUERIES)
    query_ms = _milliseconds(lambda: encoder.encode(QUERIES[0]))
    onnx_ms = _onnx_milliseconds(encoder, QUERIES[0])
    return Search(found, len(reviews), len(reviews) / seconds, query_ms, onnx_ms, encoder.fingerprint)


def _ranked(encoder: hccs.Encoder, query: str, reviews: list[str], vectors: Any) -> Found:
    cosines = encoder.similarity(encoder.encode(query, out="int16"), vectors)[0]
    best = (-cosines).argsort(kind="stable")[:SHOWN]
    return Found(query, tuple((float(cosines[i]), reviews[i]) for i in best))


def _milliseconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def _onnx_milliseconds(encoder: hccs.Encoder, query: str) -> float | None:
    """The time of the same program in ONNX Runtime, whose vectors must be the same."""
    if not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
        return None
    import onnxruntime
    from tokenizers import Tokenizer

    from hccs.export import write_onnx

    tokenizer = Tokenizer.from_str(encoder.model.program.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(encoder.model.program, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options)

        def embed() -> Any:
            ids = np.array([tokenizer.encode(query).ids], np.int64)
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
            return session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]

        if not np.array_equal(embed()[0], encoder.encode(query, out="int16")):
            raise AssertionError("ONNX Runtime returns another vector")
        return _milliseconds(embed)
