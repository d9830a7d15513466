"""q, k and v to int8 on CUDA, in one launch over memory: the rule of docs/spec.md that multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.attention.launch_plan import launcher
from hccs.backends.triton.devices import FUSED, INTERPRETED, made_current
from hccs.backends.triton.faults import OPERAND, fault_bytes
from hccs.backends.triton.formulas import mark, nearest

_TILE, _SMALL_TILE, _FEW = 4096, 1024, 1 << 17
_MOST_PARTS = 3
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Start = Callable[[torch.Tensor, Sequence[tuple[int, int, int]]], None]
"""Launches on the bytes for faults and the addresses of other parts laid out alike."""

_MOST_KNOWN = 512
_known: dict[tuple[Any, ...], Start] = {}
"""By the layout of their tensors."""


@triton.jit
def _part(
    fault_ptr, end_ptr, batch, d, x_ptr, factor_ptr, out_ptr, heads, tokens, step, x0, x1, x2, x3, o0, o1, o2,
    BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """int8 of x [batch, heads, tokens, d]; NaN is marked, and becomes -128.

    `end_ptr` tells behind which of its tokens `out` ends, where it has room for more.
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_D)
    there = row < batch * heads * tokens
    inside = there[:, None] & (column < d)[None, :]
    first, head, token = (row // (tokens * heads)).to(tl.int64), row // tokens % heads, row % tokens
    start = first * x0 + head.to(tl.int64) * x1 + token * x2
    x = tl.load(x_ptr + start[:, None] + column[None, :] * x3, mask=inside, other=0.0).to(tl.float32)
    mark(fault_ptr, OPERAND, x != x)
    factor = tl.load(factor_ptr + head * step, mask=there, other=0.0)
    scaled = tl.minimum(tl.maximum(x * factor[:, None], -128.0), 127.0)
    if end_ptr is not None:
        token += tl.load(end_ptr) - tokens
    place = first * o0 + head.to(tl.int64) * o1 + token * o2
    tl.store(out_ptr + place[:, None] + column[None, :], nearest(scaled).to(tl.int8), mask=inside)


@triton.jit
def _by_factors(
    fault_ptr, end_ptr, batch, d,
    a_ptr, a_factor_ptr, a_out_ptr, a_heads, a_tokens, a_step, a0, a1, a2, a3, ao0, ao1, ao2,
    b_ptr, b_factor_ptr, b_out_ptr, b_heads, b_tokens, b_step, b0, b1, b2, b3, bo0, bo1, bo2,
    c_ptr, c_factor_ptr, c_out_ptr, c_heads, c_tokens, c_step, c0, c1, c2, c3, co0, co1, co2,
    BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    if tl.program_id(1) == 0:
        _part(
            fault_ptr, None, batch, d, a_ptr, a_factor_ptr, a_out_ptr, a_heads, a_tokens, a_step,
            a0, a1, a2, a3, ao0, ao1, ao2, BLOCK_ROWS, BLOCK_D,
        )  # fmt: skip
    elif tl.program_id(1) == 1:
        _part(
            fault_ptr, end_ptr, batch, d, b_ptr, b_factor_ptr, b_out_ptr, b_heads, b_tokens, b_step,
            b0, b1, b2, b3, bo0, bo1, bo2, BLOCK_ROWS, BLOCK_D,
        )  # fmt: skip
    else:
        _part(
            fault_ptr, end_ptr, batch, d, c_ptr, c_factor_ptr, c_out_ptr, c_heads, c_tokens, c_step,
            c0, c1, c2, c3, co0, co1, co2, BLOCK_ROWS, BLOCK_D,
        )  # fmt: skip


def by_factor(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """int8 of floats [batch, heads, n, d]; `factor` holds one per head."""
    out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    by_factors([(x, factor.detach().float(), out)])
    return out


def by_factors(parts: Sequence[Part], end: torch.Tensor | None = None) -> None:
    """Fill int8 `out` of up to three (x, factors, out): [batch, heads, n, d], float32 of every head, like x.

    All have the same batch and d. Rows of `out` are contiguous. With `end`, int32 [1] on the device, the
    second and third `out` have room for more tokens than x, whose last one goes before that end.
    """
    first = parts[0][0]
    if not first.numel():
        return
    device = first.device
    faults = fault_bytes(device)
    asked, addresses = _asked(parts)
    with made_current(device):
        start = None if end is not None else _known.get(asked)
        if start is None:
            _launch(parts, faults, end, asked)
        else:
            start(faults, addresses)


def known(parts: Sequence[Part]) -> Start | None:
    """The launch of parts laid out like some that were quantised before."""
    return _known.get(_asked(parts)[0])


def _asked(parts: Sequence[Part]) -> tuple[tuple[Any, ...], list[tuple[int, int, int]]]:
    """What a launch is known by, and the addresses of this one."""
    asked: list[Any] = [parts[0][0].device]
    addresses = []
    for x, factor, out in parts:
        at, of_factor, to = x.data_ptr(), factor.data_ptr(), out.data_ptr()
        addresses.append((at, of_factor, to))
        asked += x.dtype, x.shape, x.stride(), factor.stride(), out.stride(), at % 16, of_factor % 16, to % 16
    return tuple(asked), addresses


def _launch(
    parts: Sequence[Part], faults: torch.Tensor, end: torch.Tensor | None, asked: tuple[Any, ...]
) -> None:
    """The first launch of a layout, after which others without an end are known."""
    batch, _, _, d = parts[0][0].shape
    rows, block_d = max(batch * x.shape[1] * x.shape[2] for x, _, _ in parts), triton.next_power_of_2(d)
    block_rows = max((_SMALL_TILE if rows * block_d <= _FEW else _TILE) // block_d, 1)
    grid, options = (
        (triton.cdiv(rows, block_rows), len(parts)),
        {"BLOCK_ROWS": block_rows, "BLOCK_D": block_d},
    )
    layouts = [(*x.shape[1:3], factor.stride(0), *x.stride(), *out.stride()[:3]) for x, factor, out in parts]

    def arguments(faults: Any, parts: Sequence[tuple[Any, ...]]) -> list[Any]:
        found = [[*part, *layout] for part, layout in zip(parts, layouts, strict=True)]
        found += [found[0]] * (_MOST_PARTS - len(found))
        return [faults, end, batch, d, *found[0], *found[1], *found[2]]

    kernel: Any = _by_factors
    plain = [tuple(tensor.detach() for tensor in part) for part in parts]
    compiled = kernel[grid](*arguments(faults, plain), **options, **FUSED)
    begin = None if INTERPRETED or end is not None else launcher(compiled, grid)
    if begin is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[asked] = lambda faults, parts: begin(*arguments(faults, parts), block_rows, block_d)
