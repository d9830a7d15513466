"""Shiftmax of I-ViT: a base-2 exponential by shifts, linear between powers of two.

With S the logit scale, x the int8 logit less the row's maximum and n = 15:

    x  = x + floor(x / 2) - floor(x / 16)          times log2 e, as 1.4375
    x0 = floor(-1 / S);  x = max(x, n*x0)          one octave in steps
    q  = floor(x / x0);  r = x - x0*q
    e  = floor((r/2 - x0) * 2^(n - q))             2^f ~ 1 + f/2 on (-1, 0]
    F  = floor((2^31 - 1) / min(sum e, 2^31 - 1));  p = floor(e*F / 2^24),  worth 2^-7

Source: Li and Gu, "I-ViT: integer-only quantization for efficient vision transformer inference", ICCV 2023;
`IntSoftmax` in zkkli/I-ViT.
Widths: int8 in, 32-bit exponentials and sums, 7 bits out. Needs: max, sum, a division per row; no tables.
Our reading: that of the PyTorch module, in exact integers. The authors' TVM kernel differs: n = 16, and r/2
is cut to a whole step before the shift. For a small S the sum leaves few bits for F (and saturates once
k * 2^15 / S reaches 2^31), which is the source's own limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow

OCTAVES = 15
INT32_MAX = (1 << 31) - 1


def constants(scale: NDArray[np.float64]) -> dict[str, Any]:
    return {"x0": np.floor(-1 / scale).astype(np.int64)}


def weights(d: NDArray[np.int64], x0: Any) -> NDArray[np.int64]:
    x = -d
    x = np.maximum(x + (x >> 1) - (x >> 4), OCTAVES * x0)
    q = x // x0
    r = x - x0 * q
    e: NDArray[np.int64] = ((r - 2 * x0) << (OCTAVES - q)) >> 1
    return e


def normalise(e: Any, total: Any) -> Any:
    return (e * (INT32_MAX // total.clip(max=INT32_MAX))) >> 24


SURROGATE = by_distance(
    name="shiftmax",
    costs=Costs(
        output="int8, 2^-7",
        needs=frozenset({"divide", "max", "sum"}),
        # max, subtract; log2 e: 2 shifts, 2 adds; clip; q by multiply and shift; r: multiply, subtract;
        # subtract, 2 shifts; sum; multiply, shift
        operations=PerRow(element=17),
        divides=PerRow(row=1),
        source="Li and Gu, I-ViT, ICCV 2023",
    ),
    weights=weights,
    normalise=normalise,
    one=128,
    constants=constants,
)
