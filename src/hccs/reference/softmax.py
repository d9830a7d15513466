"""HCCS as the paper writes it (Algorithm 1), with masks and short rows; and its wide form, with two lines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import DIVISOR_BITS, LINEAR_TOP, RECIPROCAL_SHIFT, Mode


def score_row(
    x: list[int], B: int, S: int, D: int, valid: list[bool], S2: int = 0, D2: int = 1, f: int = 0
) -> list[int]:
    """Scores s of one row of int8 logits; positions that are not valid get 0."""
    if not any(valid):
        return [0] * len(x)
    m = max(x_i for x_i, v_i in zip(x, valid, strict=True) if v_i)  #         Algorithm 1, line 3
    d = [m - x_i for x_i in x]  #                                              eq. 1
    s = [(B - S * min(d_i, D) - S2 * min(d_i, D2)) >> f for d_i in d]  #       eq. 2, 3
    return [s_i if v_i else 0 for s_i, v_i in zip(s, valid, strict=True)]


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

    T = mode.T
    numerator = T << RECIPROCAL_SHIFT if mode.is_u8 else T
    if mode.is_clb:
        rho = numerator >> leading_bit(Z)  #                                   eq. 9
    elif mode.is_linear:
        rho = linear_reciprocal(Z) << (RECIPROCAL_SHIFT - leading_bit(Z))
    else:
        rho = numerator // Z  #                                                eq. 6, 8
    shift = RECIPROCAL_SHIFT if mode.is_u8 else 0
    return [min((s_i * rho) >> shift, T) for s_i in s]  #                      eq. 7


def wide_row(x: list[int], six: list[int], mode: Mode, valid: list[bool]) -> list[int]:
    """`softmax_row` of the wide form, whose reciprocal keeps 15 bits for every Z from 1 to 2^24 - 1."""
    if not any(valid):
        return [0] * len(x)

    B, S, D, S2, D2, f = six
    s = score_row(x, B, S, D, valid, S2, D2, f)
    rho, shift = wide_reciprocal(sum(s), mode)
    T = mode.T
    return [min((s_i * rho) >> shift, T) for s_i in s]


def wide_reciprocal(Z: int, mode: Mode) -> tuple[int, int]:
    """rho < 2^15 and j with rho / 2^j next below T / Z; of CLB below T / 2^k, of the line below its T / Z."""
    k = leading_bit(Z)
    j = k + mode.spare_bits
    if mode.is_clb:
        return mode.T << mode.spare_bits, j
    if mode.is_linear:
        return linear_reciprocal(Z) << mode.spare_bits, j
    # Z brought to 16 bits, those beyond rounded up: 32 bits suffice for the division.
    M = -((-Z << DIVISOR_BITS) >> k)
    return (mode.T << (DIVISOR_BITS + mode.spare_bits)) // M, j


def linear_reciprocal(Z: int) -> int:
    """255 * 2^k / Z by a line, without a division: 8 bits, off by 8 % at most. k is Z's leading bit."""
    M = (Z << DIVISOR_BITS) >> leading_bit(Z)
    return (255 * (LINEAR_TOP - (M >> 1))) >> DIVISOR_BITS


def leading_bit(Z: int) -> int:
    """k = floor(log2 Z) for Z >= 1."""
    return Z.bit_length() - 1


def softmax(
    x: NDArray[np.int8],
    theta: HeadParams,
    mode: Mode | str = Mode.I16_DIV,
    valid: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`softmax_row`, or `wide_row`, over int8 `x` [..., q, k]; theta's shape broadcasts against x.shape[:-2].

    `valid` is a boolean mask that broadcasts to x.shape, or integer row lengths that broadcast to
    x.shape[:-1]. Input is taken as correct: `hccs.softmax` is the door that checks it.
    """
    mode = Mode(mode)
    params, mask = _per_row(theta, x.shape), mask_of(valid, x.shape)
    out = np.zeros(x.shape, mode.dtype)
    for row in np.ndindex(x.shape[:-1]):
        logits, parameters, takes_part = x[row].tolist(), params[row].tolist(), mask[row].tolist()
        if theta.wide:
            out[row] = wide_row(logits, parameters, mode, takes_part)
        else:
            B, S, D = parameters
            out[row] = softmax_row(logits, B, S, D, mode, takes_part)
    return out


def scores(x: NDArray[np.int8], theta: HeadParams, valid: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """`score_row` over int8 `x` [..., q, k], with theta and valid as in `softmax`."""
    params, mask = _per_row(theta, x.shape), mask_of(valid, x.shape)
    out = np.zeros(x.shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        B, S, D, *second = params[row].tolist()
        out[row] = score_row(x[row].tolist(), B, S, D, mask[row].tolist(), *second)
    return out


def _per_row(theta: HeadParams, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """The parameters of every row: a head's serve all its query rows."""
    packed = theta.packed
    return np.broadcast_to(
        packed[..., None, :] if len(shape) > 1 else packed, (*shape[:-1], packed.shape[-1])
    )


def mask_of(valid: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """`valid` as a boolean mask of logits of this shape."""
    if valid is None:
        return np.ones(shape, bool)
    if np.asarray(valid).dtype == bool:
        return np.broadcast_to(valid, shape)
    return np.arange(shape[-1]) < np.broadcast_to(valid, shape[:-1])[..., None]
