"""q, k and v to int8 on CUDA, one pass over memory: the rule of docs/spec.md that multiplies."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED, made_current
from hccs.backends.triton.faults import OPERAND, fault_bytes
from hccs.backends.triton.formulas import mark, nearest

_TILE = 4096


@triton.jit
def _by_factor(
    x_ptr, factor_ptr, out_ptr, fault_ptr, rows, d, heads, tokens, x0, x1, x2, x3,
    BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """int8 of x [batch, heads, tokens, d], contiguous out; NaN is marked, and becomes -128."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_D)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    head = row // tokens % heads
    start = (row // (tokens * heads)).to(tl.int64) * x0 + head.to(tl.int64) * x1 + (row % tokens) * x2
    x = tl.load(x_ptr + start[:, None] + column[None, :] * x3, mask=inside, other=0.0).to(tl.float32)
    mark(fault_ptr, OPERAND, x != x)
    factor = tl.load(factor_ptr + head, mask=row < rows, other=0.0)
    scaled = tl.minimum(tl.maximum(x * factor[:, None], -128.0), 127.0)
    place = row.to(tl.int64)[:, None] * d + column[None, :]
    tl.store(out_ptr + place, nearest(scaled).to(tl.int8), mask=inside)


def by_factor(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """int8 of floats [batch, heads, n, d]; `factor` holds one per head."""
    x = x.detach()
    batch, heads, tokens, d = x.shape
    out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    if x.numel():
        rows, block_d = batch * heads * tokens, triton.next_power_of_2(d)
        block_rows = max(_TILE // block_d, 1)
        kernel: Any = _by_factor
        with made_current(x.device):
            kernel[(triton.cdiv(rows, block_rows),)](
                x, factor.detach().float().contiguous(), out, fault_bytes(x.device), rows, d, heads, tokens,
                *x.stride(), BLOCK_ROWS=block_rows, BLOCK_D=block_d, **FUSED,
            )  # fmt: skip
    return out
