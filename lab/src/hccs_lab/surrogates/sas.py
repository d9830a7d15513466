"""SAS of TurboAttention: exp(-x) as a small table for the integer part and a cubic for the fraction.

    exp(-x) ~ LUT[floor x] * (-.1025 f^3 + .4626 f^2 - .9922 f + .9996),   f = x - floor x,   0 for x > 6
    p       = w / sum w,    x = (m - x_i) * scale

Source: Kang et al., "TurboAttention: efficient attention approximation for high throughputs LLMs", 2024
(arXiv 2412.08585). Widths: float16 weights (LUT of 7 float16 entries), float32 sum and quotient
(float64 here).
Needs: max, table (14 bytes), sum, divide.
Our reading: the polynomial is evaluated wide and rounded once to float16; x = 6 itself still counts.
Where the integer part steps up, the weight steps up by 0.06 % (the cubic ends at .3675, the next piece begins
at .9996/e): two logits a hair apart may trade places there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow

THRESHOLD = 6
CUBIC = (-0.1025, 0.4626, -0.9922, 0.9996)
LUT = np.exp(-np.arange(THRESHOLD + 1.0)).astype(np.float16).astype(np.float64)


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    integer = np.minimum(np.floor(x), THRESHOLD).astype(np.int64)
    product = LUT[integer] * np.polyval(CUBIC, x - integer)
    return np.where(x > THRESHOLD, 0, product).astype(np.float16).astype(np.float64)


def weights(d: NDArray[np.int64], scale: Any) -> NDArray[np.float64]:
    return exponential(d * scale)


SURROGATE = by_distance(
    name="sas",
    costs=Costs(
        output="float32",
        table_bytes=2 * (THRESHOLD + 1),
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, scale, compare; floor, subtract; table; 3 multiplies, 3 adds; multiply; sum; multiply
        operations=PerRow(element=16),
        divides=PerRow(row=1),
        integer_only=False,
        source="Kang et al., TurboAttention, 2024",
    ),
    weights=weights,
)
