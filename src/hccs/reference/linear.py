"""A linear layer in integers: int8 products summed in int32, then one requantisation; moving between scales.

Rows with an exponent have one power of two per token in front of a linear layer, so that quiet tokens keep
their bits. They are int8 with one more column for the exponent: [..., channels + 1].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT, MULTIPLIER_SHIFT, ROW_SHIFT, LinearParams


def shift_half_even(a: NDArray[np.int64], bits: Any) -> NDArray[np.int64]:
    """rhe(a / 2^bits): the nearest integer, ties to the even one. `bits` >= 0, an integer or an array."""
    bits = np.asarray(bits, np.int64)
    floor = a >> bits
    rest = a - (floor << bits)  #                                              0 <= rest < 2^bits
    half = np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 1)  #    no rest reaches 1 at bits = 0
    up = (rest > half) | ((rest == half) & (floor & 1 == 1))
    nearest: NDArray[np.int64] = floor + up
    return nearest


def requantise(acc: NDArray[Any], multiplier: Any, limit: int) -> NDArray[np.int64]:
    """clamp(rhe(acc * M / 2^16), -limit, limit) of int32 accumulators; M per channel, the last dimension."""
    product = acc.astype(np.int64) * np.asarray(multiplier, np.int64)
    return np.clip(shift_half_even(product, MULTIPLIER_SHIFT), -limit, limit)


def narrow(x: NDArray[np.int16], bits: int) -> NDArray[np.int8]:
    """An int16 stream as the int8 input of a linear layer: clamp(rhe(x / 2^bits), -127, 127)."""
    return np.clip(shift_half_even(x.astype(np.int64), bits), -127, 127).astype(np.int8)


def add(x: NDArray[Any], y: NDArray[Any], limit: int | None = None) -> NDArray[Any]:
    """The residual x + y: int32, or clamped to +-limit as int16; with a limit above 32767 as int32."""
    total: NDArray[np.int32] = x.astype(np.int32) + y
    if limit is None:
        return total
    return np.clip(total, -limit, limit).astype(np.int16 if limit <= INT16_LIMIT else np.int32)


def multiply(x: NDArray[np.int16], y: NDArray[np.int16], bits: int, limit: int) -> NDArray[Any]:
    """The gated product clamp(rhe(x * y / 2^bits), -limit, limit): int16, or int32 with a higher limit.

    >>> multiply(np.array([300, -5], np.int16), np.array([300, 2], np.int16), 2, 32767).tolist()
    [22500, -2]
    """
    product = shift_half_even(x.astype(np.int64) * y, bits)
    return np.clip(product, -limit, limit).astype(np.int16 if limit <= INT16_LIMIT else np.int32)


def _type_within(limit: int) -> type[np.signedinteger[Any]]:
    return np.int8 if limit <= INT8_LIMIT else np.int16 if limit <= INT16_LIMIT else np.int32


def linear(x: NDArray[np.int8], layer: LinearParams) -> NDArray[Any]:
    """rq(W x + b) of int8 rows [..., inputs] as its limit says; without multipliers the int32 sums."""
    return finish(x.astype(np.int64) @ layer.weight.T.astype(np.int64), layer)


def finish(products: NDArray[np.int64], layer: LinearParams) -> NDArray[Any]:
    """What follows the products W x: bias, requantisation, width."""
    acc = products + layer.bias
    if layer.multiplier is None:
        return acc.astype(np.int32)
    return requantise(acc, layer.multiplier, layer.limit).astype(_type_within(layer.limit))


def narrow_rows(x: NDArray[Any], scale: NDArray[np.int16] | None = None) -> NDArray[np.int8]:
    """clamp(rhe(x / 2^e), -127, 127) of rows, and e = max(0, bits of the row's largest |x| - 7).

    With `scale` of every channel x is floor((x * scale + 2^14) / 2^15) first.

    >>> narrow_rows(np.array([[100, -3], [1000, 64]], np.int16)).tolist()
    [[100, -3, 0], [125, 8, 3]]
    >>> narrow_rows(np.array([[1000, 64]], np.int16), np.array([4096, 32767], np.int16)).tolist()
    [[125, 64, 0]]
    """
    wide = x.astype(np.int64)
    if scale is not None:
        wide = (wide * scale + 2**14) >> 15
    largest = abs(wide).max(-1, keepdims=True)
    exponent = np.maximum(np.frexp(largest)[1] - 7, 0)  # frexp's exponent of an integer is its number of bits
    narrowed = np.clip(shift_half_even(wide, exponent), -INT8_LIMIT, INT8_LIMIT)
    return np.concatenate([narrowed, exponent], axis=-1).astype(np.int8)


def linear_rows(x: NDArray[np.int8], layer: LinearParams) -> NDArray[Any]:
    """A linear layer of rows with exponents: a = W x + rhe(b / 2^e), y = clamp(rhe(a * M / 2^(23 - e))).

    Without multipliers y is a itself, in steps that differ from row to row: only its direction has a meaning.
    """
    products = x[..., :-1].astype(np.int64) @ layer.weight.T.astype(np.int64)
    return finish_rows(products, x[..., -1:].astype(np.int64), layer)


def finish_rows(
    products: NDArray[np.int64], exponent: NDArray[np.int64], layer: LinearParams
) -> NDArray[Any]:
    """What follows the products W x: bias, requantisation by each row's exponent, width."""
    acc = products + shift_half_even(np.broadcast_to(layer.bias.astype(np.int64), products.shape), exponent)
    if layer.multiplier is None:
        return acc.astype(np.int32)
    nearest = shift_half_even(acc * layer.multiplier, ROW_SHIFT - exponent)
    return np.clip(nearest, -layer.limit, layer.limit).astype(_type_within(layer.limit))
