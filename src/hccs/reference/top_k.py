"""Exact search: the rows with the largest dot products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_k(
    vectors: NDArray[Any], queries: NDArray[Any], k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Scores and numbers [queries, k] of the best rows, best first; equal scores in the order of the rows."""
    scores = queries.astype(np.int64) @ vectors.astype(np.int64).T
    numbers = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, numbers, 1), numbers
