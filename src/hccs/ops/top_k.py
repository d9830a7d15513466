"""Exact search over vectors of integers, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DtypeError, ShapeError
from hccs.numbers.arrays import require_integer
from hccs.ops.arguments import require_threads
from hccs.ops.dispatch import backend
from hccs.reference.top_k import top_k as reference_top_k

MOST_DIMS = 1 << 16


def top_k(
    vectors: Any, queries: Any, k: int, *, threads: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The `k` rows of `vectors` [count, dims] with the largest dot products with each of `queries` [m, dims].

    Returns their scores and their numbers, int64 [m, k] or [m, count] where there are fewer, best first; of
    equal scores the smaller number first. int8 vectors are read once, by the native kernels where they are
    installed; int16 vectors are searched by NumPy. Both are exact.

    >>> top_k(np.array([[1, 0], [3, 4], [5, 0]], np.int8), np.array([[1, 0]], np.int8), 2)
    (array([[5, 3]]), array([[2, 1]]))
    """
    pair = [np.asarray(given) for given in (vectors, queries)]
    if pair[0].dtype != pair[1].dtype or pair[0].dtype not in (np.int8, np.int16):
        got = " and ".join(str(array.dtype) for array in pair)
        raise DtypeError("vectors and queries in int8, or both in int16", got, 'Encode with out="int8".')
    if any(array.ndim != 2 for array in pair) or pair[0].shape[1] != pair[1].shape[1]:
        raise ShapeError(
            "vectors [count, dims] and queries [m, dims]",
            " and ".join(str(array.shape) for array in pair),
            "Use one dims for both.",
        )
    require_integer("dims", pair[0].shape[1], 1, MOST_DIMS, "Encode the texts first.")
    require_integer("k", k, 1, 2**31 - 1, "Ask for one at least.")
    if threads is not None:
        require_threads(threads)
    most = min(int(k), len(pair[0]))
    if pair[0].dtype == np.int16:
        return reference_top_k(pair[0], pair[1], most)
    found: tuple[NDArray[np.int64], NDArray[np.int64]] = backend("top_k", "cpu").top_k(*pair, most, threads)
    return found
