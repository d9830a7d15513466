"""q, k and v to int8 by the native kernels: the rule of docs/spec.md that multiplies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hccs.backends.cpu import _native
from hccs.ops.arguments import not_finite


def by_factor(x: NDArray[np.float32], factors: NDArray[np.float32]) -> NDArray[np.int8]:
    """int8 of floats [batch, heads, n, d]; `factors` has one per head."""
    if x.strides[-1] != x.itemsize:
        x = np.ascontiguousarray(x)
    out = np.empty_like(x, np.int8)  # in the order of x: heads of a token stay next to each other
    if not _native.quantise(x, np.ascontiguousarray(factors), out):
        raise not_finite("q, k and v")
    return out
