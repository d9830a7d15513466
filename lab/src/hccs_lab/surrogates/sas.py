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

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.surrogate import softmax_gradient

if TYPE_CHECKING:
    from numpy.typing import NDArray

THRESHOLD = 6
CUBIC = (-0.1025, 0.4626, -0.9922, 0.9996)
LUT = np.exp(-np.arange(THRESHOLD + 1.0)).astype(np.float16).astype(np.float64)


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(-x) for x >= 0, as SAS computes it."""
    whole = np.minimum(np.floor(x), THRESHOLD).astype(np.int64)
    product = LUT[whole] * np.polyval(CUBIC, x - whole)
    return np.where(x > THRESHOLD, 0, product).astype(np.float16).astype(np.float64)


def weights(d: NDArray[np.int64], scale: Any) -> NDArray[np.float64]:
    """The exponential of a logit d steps below the maximum."""
    return exponential(d * scale)


def normalise(w: Any, total: Any) -> Any:
    """p."""
    return w / total


SURROGATE = by_distance(
    name="sas",
    summary="table and cubic exponential, zero beyond 6 (TurboAttention)",
    costs=Costs(
        input="int8",
        output="float32",
        bits_in=8,
        bits_out=32,
        bits_inside=32,
        table_bytes=2 * (THRESHOLD + 1),
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, scale, compare; floor, subtract; table; 3 multiplies, 3 adds; multiply; sum; multiply
        operations=PerRow(element=16),
        divides=PerRow(row=1),
        exponentials=PerRow(),
        integer_only=False,
        trainable=True,
        source="Kang et al., TurboAttention, 2024",
    ),
    weights=weights,
    normalise=normalise,
    one=None,
    smooth=softmax_gradient,
)
