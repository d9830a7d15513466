"""A linear layer in integers: int8 products summed in int32, then one requantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.multipliers import INT8_LIMIT, LinearParams
from hccs.reference.requantise import requantise

if TYPE_CHECKING:
    from numpy.typing import NDArray


def linear(x: NDArray[np.int8], layer: LinearParams) -> NDArray[Any]:
    """rq(W x + b) of int8 rows [..., inputs] as int8 or int16; without multipliers the int32 sums."""
    return finish(x.astype(np.int64) @ layer.weight.T.astype(np.int64), layer)


def finish(products: NDArray[np.int64], layer: LinearParams) -> NDArray[Any]:
    """What follows the products W x: bias, requantisation, width."""
    acc = products + layer.bias
    if layer.multiplier is None:
        return acc.astype(np.int32)
    dtype = np.int8 if layer.limit == INT8_LIMIT else np.int16
    return requantise(acc, layer.multiplier, layer.limit).astype(dtype)
