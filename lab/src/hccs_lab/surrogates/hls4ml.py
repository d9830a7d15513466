"""The table softmax of hls4ml ("stable" mode, its default): 1024 exponentials and 1024 inverses.

Logits come as ap_fixed<16,I>, and all else is in fixed<18,8>, rounding and saturating, 10 fraction bits:

    d   = max - x,                                    ap_ufixed<15,I-1>
    e   = EXP[top 10 bits of d],                      EXP[i] = exp(-i * 2^(I-1) / 1024)
    sum = sum e;   inv = INV[top 10 bits of sum],     INV[i] = 1 / (i/4)
    p   = e * inv,                                    ap_fixed<16,6>, truncated: worth 2^-10

Source: hls4ml (Schulte et al., 2025; transformers: Jiang et al., 2024), nnet_utils/nnet_activation.h,
`softmax_stable`, with the types and table sizes it has by default.
Widths: 16-bit logits, 18-bit tables. Needs: max, sum, two tables (4608 bytes together); no division, no
exponential. Index bits are cut, not rounded: the sum is read in steps of 1/4, so that rows may sum to as much
as 1.25.
Our reading: int8 logits enter as x * scale, truncated and wrapped to ap_fixed<16,I> as C++ assigns them; so
do distances of 2^(I-1) or more, whose order is then lost. I = `integer_bits` is the designer's choice (6 by
default); `calibrate` takes the best of 2..8 per head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import INT8_MIN, largest, look_up, wide
from hccs_lab.surrogates.surrogate import Output, Surrogate, softmax_gradient

WIDTH = 16
ENTRIES = 1024
ONE = 1 << 10  # of fixed<18,8>, and of the output ap_fixed<16,6>
LARGEST = (1 << 17) - 1
INTEGER_BITS = np.arange(2.0, 9.0)


def constants(scale: NDArray[np.float64], integer_bits: NDArray[np.float64]) -> dict[str, Any]:
    """The fixed-point logit of every int8 value, and the two tables."""
    if not ((integer_bits == np.rint(integer_bits)) & (integer_bits >= 2) & (integer_bits <= 16)).all():
        raise ParameterError(
            "integer_bits to be a whole number from 2 to 16", str(integer_bits), "hls4ml's default is 6."
        )
    steps = 2.0 ** (WIDTH - integer_bits)
    fixed = np.floor(np.arange(-128, 128) * (scale * steps)[..., None]).astype(np.int64)
    half = 1 << (WIDTH - 1)
    exponents = np.arange(ENTRIES) * (2.0 ** (integer_bits - 1) / ENTRIES)[..., None]
    # Tables are filled in float32, as the C++ does.
    exp = np.exp(-exponents.astype(np.float32)).astype(np.float64)
    with np.errstate(divide="ignore"):
        inverse = np.minimum(np.floor(4 * ONE / np.arange(ENTRIES // 2) + 0.5), LARGEST)
    return {
        "logits": (fixed + half) % (2 * half) - half,
        "exp": np.minimum(np.floor(exp * ONE + 0.5), LARGEST).astype(np.int64),
        "inverse": np.broadcast_to(inverse.astype(np.int64), (*scale.shape, ENTRIES // 2)),
    }


def rows(x: Any, valid: Any, logits: Any, exp: Any, inverse: Any) -> Output:
    """p, worth 2^-10, of arrays and tensors."""
    z = look_up(logits, wide(x) - INT8_MIN)
    top = largest(z, valid, -(1 << (WIDTH - 1)))
    d = ((top - z) * valid) & ((1 << (WIDTH - 1)) - 1)
    e = look_up(exp, d >> 5) * valid
    total = e.sum(-1, keepdims=True).clip(max=LARGEST)
    return Output((e * look_up(inverse, total >> 8)) >> 10, ONE)


SURROGATE = Surrogate(
    name="hls4ml",
    costs=Costs(
        input="ap_fixed<16,I>",
        output="ap_fixed<16,6>",
        bits_inside=36,
        table_bytes=2 * ENTRIES * 18 // 8,
        needs=frozenset({"table", "max", "sum"}),
        operations=PerRow(element=6, row=1),  # max, subtract, table, sum, multiply, shift; one table per row
        source="hls4ml, Schulte et al. 2025",
    ),
    rows=rows,
    tensor=rows,
    constants=constants,
    smooth=softmax_gradient,
    parameters={"integer_bits": 6},
    candidates=("integer_bits", INTEGER_BITS),
)
