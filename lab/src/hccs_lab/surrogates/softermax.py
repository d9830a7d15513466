"""Softermax: base-2 softmax with a running integer maximum, in fixed point of few bits.

On inputs y in Q(6,2), slice by slice of 32 columns:

    M      = max(M, max ceil(y))                      integer maximum: renormalising is a shift
    w_i    = 2^(y_i - M),                             UQ(1,15)
    D      = (D >> raise of M) + sum w_i,             UQ(10,6)
    then   p_i = w_i * (1/D),    1/D in UQ(1,7),      p in UQ(1,7)

2^fraction and 1/D are piecewise linear with four pieces each, 1/D on the mantissa of D in [1, 2).
Source: Stevens et al., "Softermax: hardware/software co-design of an efficient softmax for transformers", DAC
2021 (arXiv 2103.09301); the widths are those of its table of operand formats.
Needs: (running integer) max, sum, two tables of four slopes and intercepts; no division, no exponential.
Our reading: truncation everywhere, D saturates, slices of 32 columns; pieces run through the function at
their ends, so with two fraction bits 2^fraction needs no slope at all. The source replaces e by 2 and
retrains (`factor` = 1); `factor` = log2(e) folds the change of base into the requantisation, which costs
nothing and needs no retraining, so that is the default, and `calibrate` looks for the best factor per head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import (
    INT8_MIN,
    largest,
    leading_bit,
    look_up,
    multiplier_for,
    requantised,
    wide,
)
from hccs_lab.surrogates.surrogate import Output, Surrogate

LOG2_E = float(np.log2(np.e))
SLICE = 32
LARGEST_SUM = (1 << 16) - 1
POWERS = np.rint(2.0 ** (np.arange(4) / 4) * (1 << 15)).astype(np.int64)  # 2^(j/4), 15 fraction bits
KNOTS = np.rint((1 << 15) / (1 + np.arange(5) / 4)).astype(np.int64)  # 1/(1 + j/4), 15 fraction bits


def constants(scale: NDArray[np.float64], factor: NDArray[np.float64]) -> dict[str, Any]:
    """The multiplier to Q(6,2), and the two small tables, the same for every head."""
    return {
        "multiplier": multiplier_for(4 * factor * scale),
        "powers": np.broadcast_to(POWERS, (*scale.shape, 4)),
        "knots": np.broadcast_to(KNOTS, (*scale.shape, 5)),
    }


def rows(x: Any, valid: Any, multiplier: Any, powers: Any, knots: Any) -> Output:
    """p in UQ(1,7), worth 1/128, of arrays and tensors."""
    y = requantised(wide(x), multiplier)
    highest = y[..., :1] * 0 + INT8_MIN // 4
    D = highest * 0
    for start in range(0, y.shape[-1], SLICE):
        block, taking_part = y[..., start : start + SLICE], valid[..., start : start + SLICE]
        before = highest
        ceiling = largest((block + 3) >> 2, taking_part, INT8_MIN // 4)
        highest = before + (ceiling - before).clip(min=0)
        w = power((block - 4 * highest) * taking_part, powers) * taking_part
        D = ((D >> (highest - before)) + (w.sum(-1, keepdims=True) >> 9)).clip(max=LARGEST_SUM)
    w = power((y - 4 * highest) * valid, powers)
    reciprocal, exponent = inverse(D.clip(min=1), knots)
    return Output((w * reciprocal) >> (exponent + 9), 128)


def power(y: Any, powers: Any) -> Any:
    """2^(y/4) for y <= 0, with 15 fraction bits."""
    return look_up(powers, y & 3) >> (-(y >> 2)).clip(max=31)


def inverse(D: Any, knots: Any = KNOTS) -> tuple[Any, Any]:
    """The reciprocal of D's mantissa with 7 fraction bits, and the position of D's leading bit."""
    exponent = leading_bit(D)
    fraction = ((D << 15) >> exponent) - (1 << 15)
    piece, offset = fraction >> 13, fraction & ((1 << 13) - 1)
    left, right = look_up(knots, piece), look_up(knots, piece + 1)
    return (left - (((left - right) * offset) >> 13)) >> 8, exponent


def smooth(z: Any, valid: Any, factor: Any) -> Any:
    from hccs.nn.slots import float_softmax

    return float_softmax(z * (factor / LOG2_E).to(z.dtype), valid)


SURROGATE = Surrogate(
    name="softermax",
    costs=Costs(
        input="Q(6,2)",
        output="UQ(1,7)",
        bits_inside=24,
        table_bytes=2 * 4 + 2 * 5,
        needs=frozenset({"table", "max", "sum"}),
        # requantise: multiply, add, shift, clip; ceil: add, shift; max; subtract; table, shift; sum;
        # multiply, shift
        operations=PerRow(element=13, row=9),
        source="Stevens et al., Softermax, DAC 2021",
    ),
    rows=rows,
    tensor=rows,
    constants=constants,
    smooth=smooth,
    parameters={"factor": LOG2_E},
    candidates=("factor", LOG2_E * np.linspace(0.5, 1.5, 21)),
)
