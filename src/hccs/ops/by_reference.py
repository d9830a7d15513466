"""The operators of CPUs by `hccs.reference`: what `hccs.ops.dispatch` takes where nothing was compiled.

The functions have the names, the signatures and the bits of the native backend's, and its refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops import arguments
from hccs.reference.attention import attention as reference_attention
from hccs.reference.softmax import softmax as reference_softmax
from hccs.reference.top_k import top_k as reference_top_k


def softmax(
    x: Any, theta: HeadParams, mode: Mode, masking: int, valid: Any, out: Any, threads: int | None
) -> None:
    _require_selection("x.shape", x.shape, theta, masking, valid)
    if np.may_share_memory(x, out):
        raise arguments.shared_memory()
    out[...] = reference_softmax(x, theta, mode, valid)


def attention(
    q: Any,
    k: Any,
    v: Any,
    theta: HeadParams,
    requant: Requant,
    masking: int,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    out: str,
    threads: int | None,
) -> Any:
    shape = (*q.shape[:-1], k.shape[-2])
    _require_selection(arguments.LOGITS, shape, theta, masking, valid, requant)
    return reference_attention(q, k, v, theta, requant, valid=valid, causal=causal, mode=mode, out=out)


def by_factor(x: NDArray[np.float32], factors: NDArray[np.float32]) -> NDArray[np.int8]:
    steps = np.rint(x * factors[..., None, None])
    if np.isnan(steps).any():
        raise arguments.not_finite("q, k and v")
    return np.clip(steps, -128, 127).astype(np.int8)


def top_k(
    vectors: NDArray[np.int8], queries: NDArray[np.int8], k: int, threads: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return reference_top_k(vectors, queries, k)


def _require_selection(
    what: str,
    shape: tuple[int, ...],
    theta: HeadParams,
    masking: int,
    valid: Any,
    requant: Requant | None = None,
) -> None:
    """Refuse what the native kernels find out themselves."""
    arguments.require_shapes(what, shape, theta, masking, valid, requant)
    if masking == arguments.LENGTHS:
        arguments.require_lengths(valid, shape[-1])
