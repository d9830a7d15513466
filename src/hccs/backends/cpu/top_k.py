"""Exact search by the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.instruction_sets import threads_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES_PER_THREAD = 1 << 22


def top_k(
    vectors: NDArray[np.int8], queries: NDArray[np.int8], k: int, threads: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    scores, numbers = np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.int64)
    used = threads_for(vectors.nbytes * len(queries), _BYTES_PER_THREAD) if threads is None else threads
    _native.top_k(np.ascontiguousarray(vectors), np.ascontiguousarray(queries), scores, numbers, used)
    return scores.astype(np.int64), numbers
