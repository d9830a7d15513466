"""LayerNorm and RMSNorm in integers: exact sums, one integer square root and one division per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import XHAT_BITS, NormParams
from hccs.numbers.rms_norm import RMS_BITS, RmsParams
from hccs.reference.linear import shift_half_even


def layer_norm(v: NDArray[np.int32], params: NormParams) -> NDArray[np.int16]:
    """LayerNorm of int32 rows [..., h], |v| <= 2^16, as int16."""
    h = params.channels
    wide = v.astype(np.int64)
    d = h * wide - wide.sum(
        -1, keepdims=True
    )  #          h times the distance from the mean: no mean is rounded
    scaled = _xhat(d, params.epsilon) * params.gain + (params.bias.astype(np.int64) << XHAT_BITS)
    y = shift_half_even(scaled, XHAT_BITS + params.gain_bits)
    return np.clip(y, -32767, 32767).astype(np.int16)


def rms_norm(v: NDArray[np.int16] | NDArray[np.int32], params: RmsParams) -> NDArray[np.int16]:
    """RMSNorm of int16 or int32 rows [..., h], |v| <= 2^16, as int16: LayerNorm without a mean and a bias.

    >>> unchanged = RmsParams(np.array([2**7, 2**7], np.int32), 7, 1)
    >>> rms_norm(np.array([[30, -40]], np.int16), unchanged).tolist()  # 0.85 and -1.13
    [[1, -1]]
    """
    d = v.astype(np.int64) << RMS_BITS
    y = shift_half_even(_xhat(d, params.epsilon) * params.gain, XHAT_BITS + params.gain_bits)
    return np.clip(y, -32767, 32767).astype(np.int16)


def norm_heads(x: NDArray[np.int16], heads: Sequence[RmsParams]) -> NDArray[np.int16]:
    """RMSNorm of each head of int16 rows [..., channels], one after the other; channels behind them stay.

    >>> unchanged = RmsParams(np.array([2**7, 2**7], np.int32), 7, 1)
    >>> norm_heads(np.array([[30, -40, 3, -4, 9]], np.int16), [unchanged, unchanged]).tolist()
    [[1, -1, 1, -1, 9]]
    """
    y: NDArray[np.int16] = x.copy()
    d = heads[0].channels
    for number, head in enumerate(heads):
        own = slice(number * d, (number + 1) * d)
        y[..., own] = rms_norm(x[..., own], head)
    return y


def _xhat(d: NDArray[np.int64], epsilon: int) -> NDArray[np.int64]:
    """d / sqrt((sum(d^2) + epsilon) / h) of rows of h channels, with 20 fraction bits."""
    Q = (d * d).sum(-1) + epsilon  #                        below 2^63
    reciprocal, shift = np.empty(Q.shape, np.int64), np.empty(Q.shape, np.int64)
    for row in np.ndindex(Q.shape):
        reciprocal[row], shift[row] = inverse_root(int(Q[row]), d.shape[-1])
    return shift_half_even(d * reciprocal[..., None], shift[..., None])


def inverse_root(Q: int, h: int) -> tuple[int, int]:
    """(r, e), r to 29 bits, with r / 2^(e + 20) = sqrt(h / Q): xhat = rhe(d * r / 2^e) has 20 fraction bits.

    Q is moved up by an even number of places into [2^62, 2^64), so that its root s has 32 bits; sqrt(h), a
    constant, into [2^61, 2^62); their quotient is the row's one division.
    """
    t = (63 - (Q.bit_length() - 1)) // 2
    s = math.isqrt(Q << 2 * t)  #                           2^31 <= s < 2^32
    r = root_of(h) // s  #                                  2^29 <= r < 2^31
    return r, root_shift(h) - t - XHAT_BITS


def root_of(h: int) -> int:
    """sqrt(h) * 2^w, rounded down: a constant of the layer."""
    return math.isqrt(h << 2 * root_shift(h))


def root_shift(h: int) -> int:
    """w, with sqrt(h) * 2^w in [2^61, 2^62)."""
    return 61 - (h.bit_length() - 1) // 2
