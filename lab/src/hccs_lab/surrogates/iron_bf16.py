"""The bfloat16 softmax of AMD's IRON: two 256-entry tables on AIE-ML, native exp2 on AIE-MLv2.

`engine="aie_ml"`:    y = bf16(z - m);   j = floor(256*y)
                      e = bf16(I[j >> 8] * F[j & 255]),   I[i] = bf16(exp(i)),  F[f] = bf16(exp(f/256))
`engine="aie_mlv2"`:  e = bf16(2^(z*c - m*c)),   c = bf16(log2 e) = 1.4453125
both                  p = bf16(e * bf16(1 / sum e))

Source: AMD IRON and mlir-aie, aie_kernels softmax.cc and lut_based_ops.h (aie2 and aie2p).
Widths: bfloat16 in and out, float32 products and sum. Needs: max, sum, a reciprocal per row, and two tables
of 512 bytes (AIE-ML holds each twice, for parallel reads) or an exp2 instruction. Declared are AIE-ML's
costs.
Our reading: the maximum is subtracted on AIE-ML as in IRON's tiled kernel (its simple one does not); the
native exp2 is taken as the correctly rounded one. The rounded log2 e of AIE-MLv2 sharpens the distribution by
0.18 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import require_one_of
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import look_up, maximum, to_bfloat16
from hccs_lab.surrogates.surrogate import Output, Surrogate, softmax_gradient

ENGINES = ("aie_ml", "aie_mlv2")
LOG2_E = 1.4453125
LOWEST = -128
INTEGER = to_bfloat16(np.exp(np.arange(LOWEST, 128.0).clip(max=88)))  # exp(88) is the largest in range
FRACTION = to_bfloat16(np.exp(np.arange(256) / 256))


def constants(scale: NDArray[np.float64], engine: str) -> dict[str, Any]:
    require_one_of("engine", engine, ENGINES, "See hccs_lab.surrogates.iron_bf16.")
    return {
        "scale": scale,
        "integer": np.broadcast_to(INTEGER, (*scale.shape, INTEGER.size)),
        "fraction": np.broadcast_to(FRACTION, (*scale.shape, FRACTION.size)),
        "engine": engine,
    }


def rows(
    x: NDArray[np.int8], valid: NDArray[np.bool_], scale: Any, integer: Any, fraction: Any, engine: str
) -> Output:
    z = to_bfloat16(x * scale)
    m = maximum(z, valid)
    if engine == "aie_ml":
        y = to_bfloat16(np.where(valid, z - m, 0))
        j = np.maximum(np.floor(256 * y.astype(np.float64)), 256 * LOWEST).astype(np.int64)
        e = to_bfloat16(look_up(integer, (j >> 8) - LOWEST) * look_up(fraction, j & 255))
    else:
        e = to_bfloat16(np.exp2(np.where(valid, z * np.float64(LOG2_E) - m * np.float64(LOG2_E), 0)))
    e = np.where(valid, e, 0)
    total = e.sum(-1, keepdims=True, dtype=np.float64).astype(np.float32)
    return Output(to_bfloat16(e * to_bfloat16(1 / np.where(total == 0, np.float32(1), total))))


def tensor(z: Any, valid: Any, scale: Any, integer: Any, fraction: Any, engine: str) -> Output:
    import torch

    logits = z.detach().to(torch.bfloat16)
    m = logits.masked_fill(~valid, torch.finfo(torch.bfloat16).min).amax(-1, keepdim=True).float()
    if engine == "aie_ml":
        y = (logits.float() - m).masked_fill_(~valid, 0).to(torch.bfloat16)
        j = (256 * y.double()).floor_().clamp_(min=256 * LOWEST).to(torch.int64)
        e = look_up(integer, (j >> 8) - LOWEST) * look_up(fraction, j & 255)
    else:
        e = torch.exp2((logits.double() * LOG2_E - m.double() * LOG2_E).masked_fill_(~valid, 0)).float()
    e = e.to(torch.bfloat16).masked_fill(~valid, 0)
    total = e.double().sum(-1, keepdim=True).float()
    inverse = (1 / total.masked_fill(total == 0, 1)).to(torch.bfloat16)
    return Output((e.float() * inverse.float()).to(torch.bfloat16))


SURROGATE = Surrogate(
    name="iron_bf16",
    costs=Costs(
        input="bfloat16",
        output="bfloat16",
        table_bytes=2 * 256 * 2,
        needs=frozenset({"divide", "table", "max", "sum"}),
        # max, subtract, to fixed point, shift, and, two tables, multiply, sum, multiply
        operations=PerRow(element=10),
        divides=PerRow(row=1),
        integer_only=False,
        source="AMD IRON / mlir-aie softmax kernels",
    ),
    rows=rows,
    tensor=tensor,
    constants=constants,
    smooth=softmax_gradient,
    quantises=False,
    parameters={"engine": "aie_ml"},
)
