"""Row exponents: one power of two per token in front of a linear layer. Quiet tokens keep their bits.

int8 rows that carry an exponent have one more column for it: [..., channels + 1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.multipliers import INT8_LIMIT, ROW_SHIFT, LinearParams
from hccs.reference.requantise import shift_half_even

if TYPE_CHECKING:
    from numpy.typing import NDArray


def narrow_rows(x: NDArray[np.int16]) -> NDArray[np.int8]:
    """clamp(rhe(x / 2^e), -127, 127) of int16 rows, and e = max(0, bits of the row's largest |x| - 7).

    >>> narrow_rows(np.array([[100, -3], [1000, 64]], np.int16)).tolist()
    [[100, -3, 0], [125, 8, 3]]
    """
    wide = x.astype(np.int64)
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
    dtype = np.int8 if layer.limit == INT8_LIMIT else np.int16
    return np.clip(nearest, -layer.limit, layer.limit).astype(dtype)
