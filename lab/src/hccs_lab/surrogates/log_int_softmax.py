"""Log-Int-Softmax of FQ-ViT: I-BERT's exponential, and a probability that is a power of two in four bits.

With e the integer exponential of I-BERT (`ibert.py`), before any requantisation:

    n = round(sum e / e)
    c = round(log2 n), up from 1.5 * 2^floor(log2 n);   p = 2^-c for c <= 15, else 0

so that attention times values needs shifts alone.
Source: Lin et al., "FQ-ViT: post-training quantization for fully quantized vision transformer", IJCAI 2022;
`QIntSoftmax` in megvii-research/FQ-ViT, with the four bits of its configuration.
Widths: int8 in, 64-bit exponentials and sums, a code of 4 bits out (integers here in units of 2^-15).
Needs: max, sum, a division per element; no tables.
Our reading: exact integers where the source divides in float32; n ties to even, as its `round` does. The
source shifts the polynomial left by 30 - q; for scales below 0.0023 we shift by less, so that sums of 4096
columns fit 64 bits, which only exponentials 2^16 times smaller than the sum could notice. Scales beyond 1.67
are refused, as in `ibert`. p need not sum to one: each is between 5/8 and 3/2 of e / sum e.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates import ibert
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import divided_to_even, leading_bit

LARGEST_CODE = 15
ROOM = 49
"""Bits of the largest exponential: 63, less 12 for a sum of 4096 and 2 for its rounding."""


def constants(scale: NDArray[np.float64]) -> dict[str, Any]:
    """I-BERT's integers, and the shift that stands in for its 2^30."""
    made = ibert.constants(scale)
    bits = np.frexp(made["c"].astype(np.float64))[1]
    shift = np.minimum(ibert.LARGEST_SHIFT, ROOM - bits).astype(np.int64)
    return {"x0": made["x0"], "b": made["b"], "c": made["c"], "shift": shift}


def weights(d: NDArray[np.int64], x0: Any, b: Any, c: Any, shift: Any) -> NDArray[np.int64]:
    polynomial, q = ibert.polynomial(d, x0, b, c)
    e: NDArray[np.int64] = (polynomial << shift) >> q
    return e


def normalise(e: Any, total: Any) -> Any:
    # An exponential of 0 makes n the sum itself, whose code is past the last.
    n = divided_to_even(total, e + (e == 0)).clip(max=1 << (LARGEST_CODE + 2))
    # Of 4n/3 the leading bit is one higher exactly from 1.5 * 2^b on.
    return (1 << LARGEST_CODE) >> leading_bit(4 * n // 3)


SURROGATE = by_distance(
    name="log_int_softmax",
    costs=Costs(
        output="log2 code of 4 bits",
        bits_inside=64,
        needs=frozenset({"divide", "max", "sum"}),
        # max, subtract, clip; q by multiply and shift; r: multiply, subtract; polynomial: add, multiply, add;
        # power of two: shift; sum; rounding: add; leading bit; the next: shift, and, add; compare
        operations=PerRow(element=18),
        divides=PerRow(element=1),
        source="Lin et al., FQ-ViT, IJCAI 2022",
    ),
    weights=weights,
    normalise=normalise,
    one=1 << LARGEST_CODE,
    constants=constants,
)
