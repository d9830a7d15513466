"""q, k and v to int8 by the native kernels: the rule of docs/spec.md that multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.backends.cpu import _native
from hccs.ops.arguments import not_finite


def by_factor(x: Any, factor: Any) -> Any:
    """int8 of floats [batch, heads, n, d], an array or a tensor on the CPU; `factor` holds one per head."""
    if isinstance(x, np.ndarray):
        return _by_factor(x.astype(np.float32, copy=False), np.asarray(factor, np.float32))
    import torch

    return torch.from_numpy(_by_factor(x.detach().float().numpy(), factor.detach().float().numpy()))


def _by_factor(x: NDArray[np.float32], factors: NDArray[np.float32]) -> NDArray[np.int8]:
    if x.strides[-1] != x.itemsize:
        x = np.ascontiguousarray(x)
    out = np.empty_like(x, np.int8)  # in the order of x: heads of a token stay next to each other
    if not _native.quantise(x, np.ascontiguousarray(factors), out):
        raise not_finite("q, k and v")
    return out
