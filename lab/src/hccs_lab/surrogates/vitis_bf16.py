"""The bfloat16 softmax of AMD's AI Engine tutorial: exp by writing the exponent's bits.

    y = bf16(z - m);   e = the bfloat16 whose bits are int16(floor(185*y + 16256)), 0 where that is negative
    p = bf16(e * bf16(1 / bf16(sum e)))

185 = 2^7/ln 2 and 16256 = 2^7 * 127: the integer part of y/ln 2 lands in the exponent, the rest in the
mantissa as it is, so that 2^f is taken for 1 + f: up to 6.2 % too much.
Source: AMD Vitis tutorials, AI Engine-ML design tutorial "Softmax function" (Buz, 2024), after Schraudolph,
1999.
Widths: bfloat16 in and out, int16 bits, float32 sum. Needs: max, sum, a reciprocal per row; no table, no exp.
Our reading: the tutorial's equation. Its kernel rounds 185*y + 16256 to bfloat16 before it takes the integer,
which leaves one bit of the mantissa; we keep all seven. Ties round to even (the kernel: away from zero).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import from_bfloat16_bits, maximum, to_bfloat16
from hccs_lab.surrogates.surrogate import Output, Surrogate, softmax_gradient

SLOPE, ONE_BITS = 185, 16256


def exponential(y: NDArray[Any]) -> NDArray[np.float32]:
    bits = np.floor(SLOPE * np.asarray(y, np.float64) + ONE_BITS)
    return from_bfloat16_bits(np.maximum(bits, 0))


def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any) -> Output:
    z = to_bfloat16(x * scale)
    y = to_bfloat16(np.where(valid, z - maximum(z, valid), 0))
    e = np.where(valid, exponential(y), 0)
    total = to_bfloat16(e.sum(-1, keepdims=True, dtype=np.float64))
    return Output(to_bfloat16(e * to_bfloat16(1 / np.where(total == 0, 1, total))))


def tensor(z: Any, valid: Any, scale: Any) -> Output:
    import torch

    logits = z.detach().to(torch.bfloat16)
    low = torch.finfo(torch.bfloat16).min
    m = logits.masked_fill(~valid, low).amax(-1, keepdim=True)
    y = (logits.float() - m.float()).masked_fill_(~valid, 0).to(torch.bfloat16)
    bits = (SLOPE * y.double() + ONE_BITS).floor_().clamp_(min=0).to(torch.int16)
    e = bits.view(torch.bfloat16).masked_fill(~valid, 0)
    total = e.double().sum(-1, keepdim=True).to(torch.bfloat16).float()
    inverse = (1 / total.masked_fill(total == 0, 1)).to(torch.bfloat16)
    return Output((e.float() * inverse.float()).to(torch.bfloat16))


SURROGATE = Surrogate(
    name="vitis_bf16",
    costs=Costs(
        input="bfloat16",
        output="bfloat16",
        needs=frozenset({"divide", "max", "sum"}),
        operations=PerRow(element=7),  # max, subtract, multiply, add, clip, sum, multiply
        divides=PerRow(row=1),
        integer_only=False,
        source="AMD Vitis tutorials, AIE-ML softmax, 2024",
    ),
    rows=rows,
    tensor=tensor,
    smooth=softmax_gradient,
    quantises=False,
)
