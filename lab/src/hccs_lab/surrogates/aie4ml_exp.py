"""The integer exponential of aie4ml, the authors' own package: a second-order polynomial of 2^-f.

    KQ = round(log2(e) * scale * 2^8)
    z  = (m - x) * KQ;    f = z & 255
    e  = ((((2811*f) >> 8) - 11004)*f >> 8) + 16384,  then >> (z >> 8),  zero from z >> 8 = 16 on      (Q14)
    F  = floor(255 * 2^15 / sum e);  p = (e*F) >> 15,    worth 1/255

Source: aie4ml (Danopoulos et al.), `softmax_exp_i8` in nnet_utils/softmax/softmax.cpp.
Widths: int8 in, int16 exponentials, int32 sum, uint8 out. Needs: max, sum, a division per row; no tables.
As there, KQ must lie in 1..128 so that z fits int16: scales from 0.0014 to 0.347.
Our reading: all shifts floor (the kernel's rounding mode is a build option).
F has few bits when the row is long (sum e >= 16384 makes F <= 510), and the rows lose mass to its floor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow

FRACTION_BITS = 8
LARGEST_KQ = 32767 // 255
A2, B1, C0 = 2811, -11004, 16384  # 2^-f ~ 0.1716 f^2 - 0.6716 f + 1, in Q14


def constants(scale: NDArray[np.float64]) -> dict[str, Any]:
    kq = np.rint(np.log2(np.e) * scale * 2**FRACTION_BITS).astype(np.int64)
    if kq.size and not (kq.min() >= 1 and kq.max() <= LARGEST_KQ):
        raise ParameterError(
            f"round(log2(e) * scale * 256) between 1 and {LARGEST_KQ} for aie4ml_exp, so that z fits int16",
            f"{kq.min()} to {kq.max()} (scales {scale.min():g} to {scale.max():g})",
            "Quantise the logits with a scale between 0.0014 and 0.347.",
        )
    return {"kq": kq}


def weights(d: NDArray[np.int64], kq: Any) -> NDArray[np.int64]:
    z = d * kq
    f, octaves = z & 255, z >> FRACTION_BITS
    mantissa = ((((A2 * f) >> 8) + B1) * f >> 8) + C0
    e: NDArray[np.int64] = np.where(octaves < 16, mantissa >> np.minimum(octaves, 15), 0)
    return e


def normalise(e: Any, total: Any) -> Any:
    return (e * ((255 << 15) // total)) >> 15


SURROGATE = by_distance(
    name="aie4ml_exp",
    costs=Costs(
        output="uint8, 1/255",
        needs=frozenset({"divide", "max", "sum"}),
        # max, subtract, multiply, shift, and; multiply, shift, add, multiply, shift, add; shift, compare,
        # select; sum; multiply, shift
        operations=PerRow(element=17),
        divides=PerRow(row=1),
        source="aie4ml, Danopoulos et al.",
    ),
    weights=weights,
    normalise=normalise,
    one=255,
    constants=constants,
)
