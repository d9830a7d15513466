"""HCCS as the paper writes it (Algorithm 1), with masks and short rows: the oracle of every backend.

Written to be read next to the paper, one row at a time, in plain integers. Never optimised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.spec import RECIPROCAL_SHIFT, HeadParams, Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray


def softmax_row(x: list[int], B: int, S: int, D: int, mode: Mode, valid: list[bool]) -> list[int]:
    """Probabilities p_hat of one row of int8 logits; positions that are not valid get 0."""
    if not any(valid):
        return [0] * len(x)

    m = max(x_i for x_i, v_i in zip(x, valid, strict=True) if v_i)  #         Algorithm 1, line 3
    delta = [min(m - x_i, D) for x_i in x]  #                                  eq. 2
    s = [B - S * d_i if v_i else 0 for d_i, v_i in zip(delta, valid, strict=True)]  # eq. 3
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
    columns = x.shape[-1]
    rows = x.shape[:-1]
    # One triple per row: a head's parameters serve all its query rows.
    params = np.broadcast_to(theta.packed[..., None, :] if x.ndim > 1 else theta.packed, (*rows, 3))
    if valid is None:
        mask = np.ones(x.shape, bool)
    elif np.asarray(valid).dtype == bool:
        mask = np.broadcast_to(valid, x.shape)
    else:
        mask = np.arange(columns) < np.broadcast_to(valid, rows)[..., None]

    out = np.zeros(x.shape, mode.dtype)
    for row in np.ndindex(rows):
        B, S, D = params[row].tolist()
        out[row] = softmax_row(x[row].tolist(), B, S, D, mode, mask[row].tolist())
    return out
