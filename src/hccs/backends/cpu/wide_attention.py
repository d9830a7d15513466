"""`hccs.attention` of two lines and wide sums in NumPy: the same integers as the law, by matrix products.

The native kernels know the paper's form. Products are summed in float64, exact below 2^53.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.backends.cpu.softmax import softmax
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import FixedPoint, Requant
from hccs.ops.arguments import LOGITS, MASK, NO_MASK, as_mask, require_lengths, require_shapes
from hccs.ops.operands import sharing

if TYPE_CHECKING:
    from numpy.typing import NDArray

DISTANCES = 256
_MOST_SHIFT = 62
"""Beyond it an int8 output is 0 whatever the sum: |N * R| stays below 2^55."""


def attention(
    q: NDArray[np.int8],
    k: NDArray[np.int8],
    v: NDArray[np.int8],
    theta: HeadParams,
    requant: Requant,
    masking: int,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    out: str,
    threads: int | None,
) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """The output "pair", "float32" or "int8" and, for "pair", the row sums."""
    shape = (*q.shape[:-1], k.shape[-2])
    if (shared := sharing(q, k)) > 1:
        k, v = np.repeat(k, shared, axis=-3), np.repeat(v, shared, axis=-3)
    require_shapes(LOGITS, shape, theta, masking, valid, requant)
    if masking not in (NO_MASK, MASK):
        require_lengths(valid, shape[-1])
    mask = _attended(masking, valid, shape, causal)
    x = np.ascontiguousarray(_requantised(_product(q, np.swapaxes(k, -1, -2)), requant.logits))
    if mode is None:
        weights: NDArray[Any] = _scores(x, theta, mask)
        Z = weights.sum(-1, dtype=np.int64)
    else:
        weights = np.empty(shape, np.uint8)
        softmax(x, theta, mode, MASK, mask, weights, threads)
        Z = np.full(shape[:-1], mode.T, np.int64)
    N = _product(weights, v)
    if out == "pair":
        return N.astype(np.int32), Z.astype(np.int32)
    return (_as_int8 if out == "int8" else _as_float32)(N, Z, requant), None


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.int64]:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def _attended(masking: int, valid: Any, shape: tuple[int, ...], causal: bool) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.ones(shape, bool) if masking == NO_MASK else as_mask(valid, shape, LOGITS)
    if causal:
        nq, nk = shape[-2:]
        mask = mask & (np.arange(nk) <= np.arange(nq)[:, None] + (nk - nq))
    return np.ascontiguousarray(mask)


def _requantised(acc: NDArray[np.int64], factor: FixedPoint) -> NDArray[np.int8]:
    multiplier = np.asarray(factor.multiplier, np.int64)[..., None, None]
    shift = np.asarray(factor.shift, np.int64)[..., None, None]
    return _rounded(acc, multiplier, shift)


def _rounded(acc: NDArray[np.int64], multiplier: Any, shift: Any) -> NDArray[np.int8]:
    half_up: NDArray[np.int64] = (acc * multiplier + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(half_up, -128, 127).astype(np.int8)


def _scores(x: NDArray[np.int8], theta: HeadParams, mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Looked up by distance, in a table of each head's."""
    logits = x.astype(np.int16)
    top = np.where(mask, logits, -128).max(-1, keepdims=True)
    B, S, D, S2, D2, f = np.moveaxis(theta.packed[..., None], -2, 0)
    d = np.arange(DISTANCES)
    table = (B - S * np.minimum(d, D) - S2 * np.minimum(d, D2)) >> f
    heads = np.arange(table[..., 0].size).reshape(theta.shape)
    place = np.broadcast_to(heads, x.shape[:-2])[..., None, None] * DISTANCES + np.where(
        mask, top - logits, 0
    )
    return np.asarray(table.reshape(-1)[place] * mask, np.int32)


def _as_float32(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.float32]:
    denominator = np.maximum(Z, 1).astype(np.float32)[..., None]
    v_scale = np.asarray(requant.v_scale, np.float32)[..., None, None]
    return np.asarray((N.astype(np.float32) / denominator) * v_scale)


def _as_int8(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.int8]:
    assert requant.output is not None
    Z = np.maximum(Z, 1)
    leading_bit = np.frexp(Z.astype(np.float64))[1] - 1
    multiplier = (np.asarray(requant.output.multiplier, np.int64)[..., None] << leading_bit) // Z
    shift = np.minimum(np.asarray(requant.output.shift, np.int64)[..., None] + leading_bit, _MOST_SHIFT)
    return _rounded(N, multiplier[..., None], shift[..., None])
