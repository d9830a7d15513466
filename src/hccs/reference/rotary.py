"""Rotary positions in integers: q and k turned by their position, then q, k and v in int8."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT
from hccs.numbers.rotary import ROTATE_SHIFT, RotateParams
from hccs.reference.linear import shift_half_even


def rotate(x: NDArray[np.int16], positions: NDArray[Any], params: RotateParams) -> NDArray[np.int8]:
    """int16 rows [..., n, channels] of q, k and v side by side at `positions` [..., n] to int8.

    The first 2 * pairs channels of each head of q and k turn: a = x1 * c - x2 * s and x2 * c + x1 * s for
    channels i and i + pairs. Every other channel, and v, has a = x * 32767. Then
    clamp(rhe(a * M / 2^38), -127, 127) by the multiplier of the head.

    >>> turn = np.array([[32767], [0]], np.int16)
    >>> by = RotateParams(turn, turn[::-1].copy(), np.array([2**20] * 3, np.int32), heads=1)
    >>> rows = np.tile(np.array([800, 16], np.int16), (2, 3))
    >>> rotate(rows, np.arange(2), by).tolist()  # not at all, then by 90 degrees; steps of 8
    [[100, 2, 100, 2, 100, 2], [-2, 100, -2, 100, 100, 2]]
    """
    width = x.shape[-1] // params.all_heads
    heads = x.reshape(*x.shape[:-1], params.all_heads, width).astype(np.int64)
    pairs, turned = params.pairs, params.heads + params.kv_heads
    c, s = (part.astype(np.int64)[positions][..., None, :] for part in (params.cosine, params.sine))
    a = heads * INT16_LIMIT
    x1, x2 = heads[..., :turned, :pairs], heads[..., :turned, pairs : 2 * pairs]
    a[..., :turned, :pairs] = x1 * c - x2 * s
    a[..., :turned, pairs : 2 * pairs] = x2 * c + x1 * s
    y = shift_half_even(a * params.multiplier.astype(np.int64)[:, None], ROTATE_SHIFT)
    return np.clip(y, -INT8_LIMIT, INT8_LIMIT).astype(np.int8).reshape(x.shape)
