"""HCCS as the paper writes it (Algorithm 1), with masks and short rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import RECIPROCAL_SHIFT, Mode

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
    params, mask = _per_row(theta, x.shape), mask_of(valid, x.shape)
    out = np.zeros(x.shape, mode.dtype)
    for row in np.ndindex(x.shape[:-1]):
        B, S, D = params[row].tolist()
        out[row] = softmax_row(x[row].tolist(), B, S, D, mode, mask[row].tolist())
    return out


def scores(x: NDArray[np.int8], theta: HeadParams, valid: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """`score_row` over int8 `x` [..., q, k], with theta and valid as in `softmax`."""
    params, mask = _per_row(theta, x.shape), mask_of(valid, x.shape)
    out = np.zeros(x.shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        B, S, D = params[row].tolist()
        out[row] = score_row(x[row].tolist(), B, S, D, mask[row].tolist())
    return out


def _per_row(theta: HeadParams, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """One triple per row: a head's parameters serve all its query rows."""
    return np.broadcast_to(theta.packed[..., None, :] if len(shape) > 1 else theta.packed, (*shape[:-1], 3))


def mask_of(valid: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """`valid` as a boolean mask of logits of this shape."""
    if valid is None:
        return np.ones(shape, bool)
    if np.asarray(valid).dtype == bool:
        return np.broadcast_to(valid, shape)
    return np.arange(shape[-1]) < np.broadcast_to(valid, shape[:-1])[..., None]
