"""HCCS as the paper writes it (Algorithm 1), with masks and short rows, and the attention around it.

The oracle of every backend: written to be read next to the paper and docs/spec.md, in plain integers. Never
optimised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.requant import FixedPoint, Requant
from hccs.spec import RECIPROCAL_SHIFT, HeadParams, Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray


def score_row(x: list[int], B: int, S: int, D: int, valid: list[bool]) -> list[int]:
    """Scores s of one row of int8 logits; positions that are not valid get 0."""
    if not any(valid):
        return [0] * len(x)
    m = max(x_i for x_i, v_i in zip(x, valid, strict=True) if v_i)  #         Algorithm 1, line 3
    delta = [min(m - x_i, D) for x_i in x]  #                                  eq. 2
    return [B - S * d_i if v_i else 0 for d_i, v_i in zip(delta, valid, strict=True)]  # eq. 3


def softmax_row(x: list[int], B: int, S: int, D: int, mode: Mode, valid: list[bool]) -> list[int]:
    """Probabilities p_hat of one row of int8 logits; positions that are not valid get 0."""
    if not any(valid):
        return [0] * len(x)

    s = score_row(x, B, S, D, valid)
    Z = sum(s)  #                                                              eq. 5

    if mode.is_u8:
        # Short rows: scale up until Z >= 256, so that the reciprocal still fits int16.
        e = max(8 - leading_bit(Z), 0)
        s = [s_i << e for s_i in s]
        Z = Z << e

    numerator = mode.T << RECIPROCAL_SHIFT if mode.is_u8 else mode.T
    rho = numerator >> leading_bit(Z) if mode.is_clb else numerator // Z  #    eq. 6, 8, 9
    shift = RECIPROCAL_SHIFT if mode.is_u8 else 0
    return [min((s_i * rho) >> shift, mode.T) for s_i in s]  #                 eq. 7


def leading_bit(Z: int) -> int:
    """k = floor(log2 Z) for Z >= 1."""
    return Z.bit_length() - 1


def softmax(
    x: NDArray[np.int8],
    theta: HeadParams,
    mode: Mode | str = Mode.I16_DIV,
    valid: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`softmax_row` over int8 `x` [..., q, k]; theta's shape broadcasts against x.shape[:-2].

    `valid` is a boolean mask that broadcasts to x.shape, or integer row lengths that broadcast to
    x.shape[:-1]. Input is taken as correct: `hccs.softmax` is the door that checks it.
    """
    mode = Mode(mode)
    params, mask = _per_row(theta, x.shape), _mask(valid, x.shape)
    out = np.zeros(x.shape, mode.dtype)
    for row in np.ndindex(x.shape[:-1]):
        B, S, D = params[row].tolist()
        out[row] = softmax_row(x[row].tolist(), B, S, D, mode, mask[row].tolist())
    return out


def scores(x: NDArray[np.int8], theta: HeadParams, valid: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """`score_row` over int8 `x` [..., q, k], with theta and valid as in `softmax`."""
    params, mask = _per_row(theta, x.shape), _mask(valid, x.shape)
    out = np.zeros(x.shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        B, S, D = params[row].tolist()
        out[row] = score_row(x[row].tolist(), B, S, D, mask[row].tolist())
    return out


def _per_row(theta: HeadParams, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """One triple per row: a head's parameters serve all its query rows."""
    return np.broadcast_to(theta.packed[..., None, :] if len(shape) > 1 else theta.packed, (*shape[:-1], 3))


def _mask(valid: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if valid is None:
        return np.ones(shape, bool)
    if np.asarray(valid).dtype == bool:
        return np.broadcast_to(valid, shape)
    return np.arange(shape[-1]) < np.broadcast_to(valid, shape[:-1])[..., None]


def attention(
    q: NDArray[np.int8],
    k: NDArray[np.int8],
    v: NDArray[np.int8],
    theta: HeadParams,
    requant: Requant,
    *,
    valid: NDArray[Any] | None = None,
    causal: bool = False,
    mode: Mode | str | None = None,
    out: str = "float32",
) -> Any:
    """Integer attention of q [..., nq, d] over k, v [..., nk, d]; theta and requant per q.shape[:-2].

    `out` is "pair" for the integers (N, Z), "float32" or "int8". Without a mode normalisation is deferred;
    with "u8_div" or "u8_clb" probabilities come first. Input is taken as correct, as in `softmax`.
    """
    x = requantise(q.astype(np.int64) @ np.swapaxes(k, -1, -2).astype(np.int64), requant.logits)
    mask = _mask(valid, x.shape)
    if causal:
        nq, nk = x.shape[-2:]
        mask = mask & (np.arange(nk) <= np.arange(nq)[:, None] + (nk - nq))
    if mode is None:
        weights = scores(x, theta, mask)
        Z = weights.sum(-1)
    else:
        weights = softmax(x, theta, mode, mask).astype(np.int64)
        Z = np.full(x.shape[:-1], Mode(mode).T)
    N = weights @ v.astype(np.int64)
    if out == "pair":
        return N.astype(np.int32), Z.astype(np.int32)
    return as_int8(N, Z, requant) if out == "int8" else as_float32(N, Z, requant)


def requantise(acc: NDArray[np.int64], factor: FixedPoint) -> NDArray[np.int8]:
    """Accumulators [..., rows, columns] to int8 by their head's factor: round half up, saturate."""
    multiplier = np.asarray(factor.multiplier, np.int64)[..., None, None]
    shift = np.asarray(factor.shift, np.int64)[..., None, None]
    return _round_half_up(acc, multiplier, shift)


def _round_half_up(acc: NDArray[np.int64], multiplier: Any, shift: Any) -> NDArray[np.int8]:
    """clamp(floor((acc * multiplier + 2^(shift - 1)) / 2^shift), -128, 127); |acc * multiplier| <= 2^48."""
    rounded: NDArray[np.int64] = (acc * multiplier + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(rounded, -128, 127).astype(np.int8)


def as_float32(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.float32]:
    """N / Z * v_scale: one float32 division, one float32 multiplication; 0 where nothing was attended."""
    denominator = np.maximum(Z, 1).astype(np.float32)[..., None]
    v_scale = np.asarray(requant.v_scale, np.float32)[..., None, None]
    return (N.astype(np.float32) / denominator) * v_scale


def as_int8(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.int8]:
    """N / Z times the output factor in int8: one integer division per row gives its own multiplier."""
    assert requant.output is not None
    Z = np.maximum(Z, 1)
    k = np.vectorize(lambda z: leading_bit(int(z)), otypes=[np.int64])(Z)
    multiplier = (np.asarray(requant.output.multiplier, np.int64)[..., None] << k) // Z
    shift = np.asarray(requant.output.shift, np.int64)[..., None] + k
    return _round_half_up(N, multiplier[..., None], shift[..., None])
