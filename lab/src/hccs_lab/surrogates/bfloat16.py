"""bfloat16 in NumPy, which has no such type: float32 values whose low 16 bits are zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rounded(x: Any) -> NDArray[np.float32]:
    """The nearest bfloat16 of finite values, ties to even.

    >>> rounded([1.0, 1.00390625, 1.01171875]).tolist()
    [1.0, 1.0, 1.015625]
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def from_bits(bits: Any) -> NDArray[np.float32]:
    """The values that 16-bit patterns stand for.

    >>> from_bits([16256, 16128]).tolist()
    [1.0, 0.5]
    """
    return (np.ascontiguousarray(bits, np.uint32) << 16).view(np.float32)
