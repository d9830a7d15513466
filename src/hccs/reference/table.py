"""Any function of one int8 value: a table of 256, exact by definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def table(function: Callable[[Any], Any], in_scale: float, out_scale: float) -> NDArray[np.int8]:
    """clamp(rhe(f(x * s_in) / s_out), -127, 127) for x from -128 to 127, in that order."""
    values = np.asarray(function(np.arange(-128, 128) * in_scale), np.float64)
    if not np.isfinite(values).all():
        raise DataError(
            "a function that is finite over the input's range", "NaN or infinity", "Check the activation."
        )
    return np.clip(np.rint(values / out_scale), -127, 127).astype(np.int8)


def look_up(x: NDArray[np.int8], entries: NDArray[np.int8]) -> NDArray[np.int8]:
    """entries[x + 128]."""
    return entries[x.astype(np.int64) + 128]
