"""I-BERT's integer softmax: i-exp, a second-order polynomial between powers of two.

With S the logit scale, x the int8 logit less the row's maximum, and a = .35815147, b = .96963238/a, c = 1/a
(so that exp(r) ~ a*(r^2 + b*r + c) on (-ln 2, 0]):

    x0 = floor(-0.6931 / S)                        -ln 2 in steps
    x  = max(x, 30*x0);  q = floor(x / x0);  r = x - x0*q
    e  = floor( ((r + floor(b/S))*r + floor(c/S^2)) * 2^(30-q) )
    e16 = round(e * 32767 / e(0))                  16-bit requantisation
    F  = floor(2^32 / sum e16);  p = floor(e16*F / 2^24),  worth 2^-8

Source: Kim et al., "I-BERT: Integer-only BERT quantization", ICML 2021; `IntSoftmax` in transformers' I-BERT.
Widths: int8 in here (the source takes any width), int32 polynomial, 16-bit exponentials, 8 bits and the carry
out (256 stands for one). Needs: max, sum, a division per row; the constants are per head, no tables.
Our reading: the source requantises e to 16 bits with a range that it tracks while training; every row's
maximum has e = e(0), the largest there is, so that is where the range settles, and we take it. e is never
formed at full width: e * 32767 / e(0) = poly*M >> (31 + q), rounded, M = round(2^31 * 32767 / floor(c/S^2)).
Beyond S = 1.67 floor(c/S^2) is 0 and the method has no constants; such scales are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow

A, B, C = 0.35815147, 0.96963238, 1.0
NEGATIVE_LN2 = -0.6931
LARGEST_SHIFT = 30
MULTIPLIER_BITS = 31
INT16_MAX = 32767


def constants(scale: NDArray[np.float64]) -> dict[str, Any]:
    """The integers x0, floor(b/S), floor(c/S^2) and the requantisation's multiplier."""
    c = np.floor(C / A / scale**2)
    if (c < 1).any():
        raise ParameterError(
            "scale <= 1.67 for ibert, so that floor(c / scale^2) >= 1",
            f"scale up to {scale.max():g}",
            "Quantise the logits with a finer step.",
        )
    return {
        "x0": np.floor(NEGATIVE_LN2 / scale).astype(np.int64),
        "b": np.floor(B / A / scale).astype(np.int64),
        "c": c.astype(np.int64),
        "multiplier": np.rint(2.0**MULTIPLIER_BITS * INT16_MAX / c).astype(np.int64),
    }


def polynomial(d: NDArray[np.int64], x0: Any, b: Any, c: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(r + b)*r + c and q: the exponential of a logit d steps below the maximum is the former * 2^-q."""
    x = np.maximum(-d, LARGEST_SHIFT * x0)
    q = x // x0
    r = x - x0 * q
    return np.maximum((r + b) * r + c, 0), q


def weights(d: NDArray[np.int64], x0: Any, b: Any, c: Any, multiplier: Any) -> NDArray[np.int64]:
    value, q = polynomial(d, x0, b, c)
    shift = MULTIPLIER_BITS + q
    rounded = (value * multiplier + (1 << (shift - 1))) >> shift
    e16: NDArray[np.int64] = np.minimum(rounded, INT16_MAX)
    return e16


def normalise(e: Any, total: Any) -> Any:
    return (e * ((1 << 32) // total)) >> 24


SURROGATE = by_distance(
    name="ibert",
    costs=Costs(
        output="uint8 with carry, 2^-8",
        bits_inside=64,
        needs=frozenset({"divide", "max", "sum"}),
        # max, subtract, clip; q by multiply and shift; r: multiply, subtract; polynomial: add, multiply, add;
        # power of two: shift; requantise: multiply, shift; sum; multiply, shift
        operations=PerRow(element=16),
        divides=PerRow(row=1),
        source="Kim et al., I-BERT, ICML 2021",
    ),
    weights=weights,
    normalise=normalise,
    one=256,
    constants=constants,
)
