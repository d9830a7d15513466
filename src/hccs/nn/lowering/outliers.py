"""Channels of a wide layer that are far larger than the others: a path of their own, with steps of their own.

An activation's output has one int8 step, and one channel that reaches five times as far as the rest costs all
of them 14 dB. No scale can be moved between the weights around a GELU as it can around a ReLU; but the layer
can be cut: the few channels go through a linear layer, a table and a linear layer of their own, and the two
parts are added. The products are the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hccs.calibration.ranges import ValueRanges

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST, SHARE = 64, 16
"""Channels that may be cut off, and one in how many: more are no outliers."""

GAIN = 10 ** (6 / 10)
"""By how much the noise must fall for a cut: 6 dB, one bit; less is not worth the operators."""


def outliers(largest: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """The channels to cut off, in order, where two steps instead of one lower the noise of rounding enough.

    >>> largest = np.linspace(1, 2, 48, dtype=np.float32)
    >>> outliers(largest) is None
    True
    >>> largest[[7, 30]] = 25, 6
    >>> outliers(largest).tolist()
    [7, 30]
    """
    order = np.argsort(-largest, kind="stable")
    reach = largest[order].astype(np.float64)
    most = min(MOST, len(reach) // SHARE)
    cuts = np.arange(most + 1)
    noise = cuts * reach[0] ** 2 + (len(reach) - cuts) * reach[: most + 1] ** 2
    best = int(np.argmin(noise))
    return np.sort(order[:best]) if noise[0] > GAIN * noise[best] else None


def cut_ranges(
    ranges: ValueRanges, layers: int
) -> tuple[dict[int, NDArray[np.int64]], dict[str, NDArray[np.float64]]]:
    """The channels to cut off per layer, and the magnitudes that the parts' steps shall reach."""
    few: dict[int, NDArray[np.int64]] = {}
    reach: dict[str, NDArray[np.float64]] = {}
    for i in range(layers):
        found = outliers(ranges.values[f"active{i}"].largest)
        if found is None:
            continue
        few[i] = found
        for name in ("wide", "active"):
            largest = ranges.values[f"{name}{i}"].largest
            rest = np.delete(largest, found)
            reach[f"{name}{i}"] = np.float64(max(float(rest.max()), 1e-6))
            reach[f"{name}{i}_few"] = np.float64(max(float(largest[found].max()), 1e-6))
    return few, reach
