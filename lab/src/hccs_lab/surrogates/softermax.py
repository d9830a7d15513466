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

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.fitting import best_candidate
from hccs_lab.surrogates.rows import INT8_MIN, multiplier_for, requantised
from hccs_lab.surrogates.surrogate import Output, Surrogate

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], multiplier: Any, powers: Any, knots: Any) -> Output:
    """p in UQ(1,7): worth 1/128."""
    y = requantised(x.astype(np.int64), multiplier)
    highest = np.full((*y.shape[:-1], 1), INT8_MIN // 4, np.int64)
    D = np.zeros_like(highest)
    for start in range(0, y.shape[-1], SLICE):
        block, taking_part = y[..., start : start + SLICE], valid[..., start : start + SLICE]
        before = highest
        ceiling = np.where(taking_part, (block + 3) >> 2, INT8_MIN // 4)
        highest = np.maximum(before, ceiling.max(-1, keepdims=True))
        w = np.where(taking_part, power(np.where(taking_part, block - 4 * highest, 0)), 0)
        D = np.minimum((D >> (highest - before)) + (w.sum(-1, keepdims=True) >> 9), LARGEST_SUM)
    w = power(np.where(valid, y - 4 * highest, 0))
    reciprocal, exponent = inverse(np.maximum(D, 1))
    return Output((w * reciprocal) >> (exponent + 9), 128)


def power(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """2^(y/4) for y <= 0, with 15 fraction bits."""
    return POWERS[y & 3] >> np.minimum(-(y >> 2), 31)


def inverse(D: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The reciprocal of D's mantissa with 7 fraction bits, and the position of D's leading bit."""
    exponent = np.frexp(D.astype(np.float64))[1].astype(np.int64) - 1
    fraction = ((D << 15) >> exponent) - (1 << 15)
    piece, offset = fraction >> 13, fraction & ((1 << 13) - 1)
    value = KNOTS[piece] - (((KNOTS[piece] - KNOTS[piece + 1]) * offset) >> 13)
    return value >> 8, exponent


def tensor(x: Any, valid: Any, multiplier: Any, powers: Any, knots: Any) -> Output:
    """The same on tensors."""
    import torch

    from hccs_lab.surrogates import tensors

    def power_of(t: Any) -> Any:
        return tensors.look_up(powers, t & 3) >> (-(t >> 2)).clamp(max=31)

    y = requantised(x.to(torch.int64), multiplier).masked_fill(~valid, INT8_MIN)
    highest = torch.full_like(y[..., :1], INT8_MIN // 4)
    D = torch.zeros_like(highest)
    for block, part in zip(y.split(SLICE, -1), valid.split(SLICE, -1), strict=True):
        before, highest = highest, torch.maximum(highest, ((block + 3) >> 2).amax(-1, keepdim=True))
        w = power_of(block - 4 * highest).masked_fill(~part, 0)
        D = ((D >> (highest - before)) + (w.sum(-1, keepdim=True) >> 9)).clamp(max=LARGEST_SUM)
    D = D.clamp(min=1)
    exponent = torch.frexp(D.double())[1].to(torch.int64) - 1
    fraction = ((D << 15) >> exponent) - (1 << 15)
    piece, offset = fraction >> 13, fraction & ((1 << 13) - 1)
    left, right = tensors.look_up(knots, piece), tensors.look_up(knots, piece + 1)
    reciprocal = (left - (((left - right) * offset) >> 13)) >> 8
    return Output((power_of(y - 4 * highest) * reciprocal) >> (exponent + 9), 128)


def smooth(z: Any, valid: Any, factor: Any) -> Any:
    """Base-2 softmax of the scaled logits."""
    from hccs.nn.layers import float_softmax

    return float_softmax(z * (factor / LOG2_E).to(z.dtype), valid)


def fit(x: NDArray[np.int8], scale: NDArray[np.float64], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """The factor of each head with the least divergence from softmax."""
    factors = LOG2_E * np.linspace(0.5, 1.5, 21)
    return {
        "factor": best_candidate(
            lambda factor: SURROGATE(x, scale, valid, factor=factor), factors, x, scale, valid
        )
    }


SURROGATE = Surrogate(
    name="softermax",
    summary="base 2, running integer maximum, fixed point",
    costs=Costs(
        input="Q(6,2)",
        output="UQ(1,7)",
        bits_in=8,
        bits_out=8,
        bits_inside=24,
        table_bytes=2 * 4 + 2 * 5,
        needs=frozenset({"table", "max", "sum"}),
        # requantise: multiply, add, shift, clip; ceil: add, shift; max; subtract; table, shift; sum;
        # multiply, shift
        operations=PerRow(element=13, row=9),
        divides=PerRow(),
        exponentials=PerRow(),
        integer_only=True,
        trainable=True,
        source="Stevens et al., Softermax, DAC 2021",
    ),
    rows=rows,
    tensor=tensor,
    constants=constants,
    smooth=smooth,
    parameters={"factor": LOG2_E},
    fit=fit,
)
