"""E2Softmax of SOLE: exponentials that are powers of two in four bits, divided by logarithm.

With x <= 0 the logit less the row's maximum, in fixed point with four fraction bits:

    k   = round(-(x + (x >> 1) - (x >> 4))),  0..15      log2 e as 1.4375
    sum = sum 2^-k = 2^s * (1 + f)
    p   = c * 2^-(k + s),   c = 0.818 for f < 1/2, else 0.568

c is 1/(1 + f) ~ 1 - f/2 with f cut to its first bit, less 0.182 so that its mean over f is that of 1/(1 + f).
Source: Wang et al., "SOLE: hardware-software co-design of softmax and LayerNorm for efficient transformer
inference", ICCAD 2023 (arXiv 2510.17189). We know of no code by its authors.
Widths: 8 bits in, codes of 4 bits, a 16-bit sum and fraction, uint8 out, worth 2^-8. Needs: max, sum; neither
table nor division nor, after the logits' requantisation, a multiplication.
Our reading: int8 distances are brought to 1/16 with a 16-bit multiplier, rounding half up, at most 255/16; k
rounds half up; c is 209/256 or 145/256, and p is cut. The accelerator keeps a running maximum, and adds the
code of its later moves to k; here the row's maximum is known first, so that no move rounds. A lone logit gets
209/256, and rows sum to between 0.81 and 1.23 before the cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import REQUANTISATION_BITS, leading_bit, multiplier_for

FRACTION_BITS = 4
LARGEST_CODE = 15
LOW, HIGH = 209, 145  # 0.818 and 0.568, 8 fraction bits


def constants(scale: NDArray[np.float64]) -> dict[str, Any]:
    return {"multiplier": multiplier_for(scale * (1 << FRACTION_BITS))}


def weights(d: NDArray[np.int64], multiplier: Any) -> NDArray[np.int64]:
    """2^-k of a logit d steps below the maximum, worth 2^-15."""
    half = 1 << (REQUANTISATION_BITS - 1)
    x = -np.minimum((d * multiplier + half) >> REQUANTISATION_BITS, 255)
    octaves = -(x + (x >> 1) - (x >> 4))
    k = np.minimum((octaves + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS, LARGEST_CODE)
    return 1 << (LARGEST_CODE - k)


def normalise(w: Any, total: Any) -> Any:
    s = leading_bit(total)
    second = (total << 1 >> s) & 1
    return (w * (LOW - (LOW - HIGH) * second)) >> s


SURROGATE = by_distance(
    name="e2softmax",
    costs=Costs(
        output="uint8, 2^-8",
        needs=frozenset({"max", "sum"}),
        # max, subtract; requantise: multiply, add, shift, clip; log2 e: 2 shifts, 2 adds; round: add, shift;
        # clip; power: shift; sum; exponents: add; shift
        operations=PerRow(element=17, row=4),
        source="Wang et al., SOLE, ICCAD 2023",
    ),
    weights=weights,
    normalise=normalise,
    one=256,
    constants=constants,
)
