"""Exact search over a folder of vectors: part after part, in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.corpus.folder import Folder
from hccs.errors import DataError, FileError
from hccs.numbers.layers import INT16_LIMIT
from hccs.ops.top_k import top_k
from hccs.text.adapters import QUERY, prompt_for
from hccs.text.encoder import Encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT8_ONE = INT16_LIMIT / 256
"""What stands for 1 in vectors of int8."""


@dataclass(frozen=True)
class Hit:
    """A text that was found: its cosine in the folder's dtype, its id, and itself where stored."""

    score: float
    id: str
    text: str | None


def search(
    path: Path, queries: Sequence[str], k: int = 10, *, model: str | None = None, threads: int | None = None
) -> list[list[Hit]]:
    """The `k` texts of a folder closest to each query, best first; equal ones in the order of the corpus.

    Products are exact integers. Vectors of another model than the folder's are refused.
    """
    folder = Folder.load(path)
    encoder = Encoder.load(model or folder.settings.model)
    if encoder.fingerprint != folder.settings.fingerprint:
        raise FileError(
            f"the model of {path}, fingerprint {folder.settings.fingerprint}",
            encoder.fingerprint,
            "Name its file with --model: vectors of two models are not comparable.",
        )
    names = folder.names()
    if not names:
        raise DataError(f"parts in {path}", "none yet", "Finish hccs embed first.")
    dtype = "int8" if folder.settings.dtype == "int8" else "int16"
    asked = encoder.encode(
        list(queries),
        dims=folder.settings.dims,
        out=dtype,
        prompt=prompt_for(encoder, QUERY),
        threads=threads,
    )
    best: list[list[tuple[int, int, int]]] = [[] for _ in queries]
    for number, name in enumerate(names):
        scores, rows = top_k(_integers(folder.vectors(name)), asked, k, threads=threads)
        for query, found in enumerate(best):
            found += [(-score, number, row) for score, row in zip(scores[query], rows[query], strict=True)]
            best[query] = sorted(found)[:k]
    one = (INT8_ONE if dtype == "int8" else INT16_LIMIT) ** 2
    strings = {number: _strings(folder, names[number]) for number in {n for b in best for _, n, _ in b}}
    return [
        [Hit(float(-score) / one, strings[n][0][row], strings[n][1][row]) for score, n, row in found]
        for found in best
    ]


def _strings(folder: Folder, name: str) -> tuple[list[str], Sequence[str | None]]:
    ids = folder.ids(name)
    return ids, folder.texts(name) or [None] * len(ids)


def _integers(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors as they were computed: floats are int16 divided by 32767."""
    if vectors.dtype != np.float32:
        return vectors
    return np.rint(vectors.astype(np.float64) * INT16_LIMIT).astype(np.int16)
