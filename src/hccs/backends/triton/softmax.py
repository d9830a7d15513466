"""The row kernels for CUDA tensors, in Triton: one pass over memory, the same bits as every other backend."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.codes import (
    APART,
    BY_BLOCK,
    BYTES,
    DIVISION,
    NO_MASK,
    PACKED,
    how_scores_come_about,
)
from hccs.backends.triton.devices import FUSED, heads_on, lines_on, made_current
from hccs.backends.triton.faults import fault_bytes
from hccs.backends.triton.formulas import (
    as_offset_float,
    block_of_rows,
    group_of,
    head_parameters,
    probabilities,
    scores,
    valid_columns,
    wide_reciprocal,
)
from hccs.backends.triton.full_rows import MOST_COLUMNS, can_run, full_rows, full_rows_wide
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import arguments

# Elements one program handles, its warps, and the parts of a row, one or two, that a thread holds in the
# kernels for full rows (benchmarks/softmax_gpu.py --tune).
_TILE, _WARPS, _PARTS = 4096, 4, 2
# In the second and third dimension of a grid.
_MOST_PROGRAMS = 65535


@triton.jit
def _softmax_rows(
    x_ptr, theta_ptr, valid_ptr, fault_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr,
    RECIPROCAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column, inside, place = block_of_rows(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    x = tl.load(x_ptr + place) if FULL else tl.load(x_ptr + place, mask=inside, other=-128)
    ALL: tl.constexpr = FULL and MASKING == NO_MASK
    valid = valid_columns(valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING)
    group = group_of(row, rows_per_group, ONE_GROUP)
    B, S, D = head_parameters(theta_ptr, group, heads, ONE_GROUP)
    _, _, delta, Z = scores(as_offset_float(x), valid, columns, B, S, D, 8388608.0, ALL)
    p = probabilities(delta, valid, Z, B, S, IS_U8, RECIPROCAL, ALL)
    p = p.to(tl.int32, bitcast=True).to(out_ptr.dtype.element_ty)
    if FULL:
        tl.store(out_ptr + place, p)
    else:
        tl.store(out_ptr + place, p, mask=inside)


@triton.jit
def _wide_rows(
    x_ptr, theta_ptr, valid_ptr, fault_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr,
    RECIPROCAL: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The wide form, two lines and sums of 24 bits, in int32."""
    row, column, inside, place = block_of_rows(rows, columns, BLOCK_ROWS, BLOCK_COLUMNS)
    x = tl.load(x_ptr + place, mask=inside, other=-128).to(tl.int32)
    valid = valid_columns(valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING)
    theta_ptr += (group_of(row, rows_per_group, ONE_GROUP) % heads) * 6
    B, S, D = tl.load(theta_ptr), tl.load(theta_ptr + 1), tl.load(theta_ptr + 2)
    S2, D2, f = tl.load(theta_ptr + 3), tl.load(theta_ptr + 4), tl.load(theta_ptr + 5)
    if not ONE_GROUP:
        B, S, D, S2, D2, f = B[:, None], S[:, None], D[:, None], S2[:, None], D2[:, None], f[:, None]
    distance = tl.max(tl.where(valid, x, -128), axis=1)[:, None] - x
    s = (B - S * tl.minimum(distance, D) - S2 * tl.minimum(distance, D2)) >> f
    s = tl.where(valid, s, 0)
    rho, k = wide_reciprocal(tl.maximum(tl.sum(s, axis=1), 1)[:, None], IS_U8, RECIPROCAL)
    p = tl.minimum((s * rho) >> (k + (7 if IS_U8 else 0)), 255 if IS_U8 else 32767)
    tl.store(out_ptr + place, p.to(out_ptr.dtype.element_ty), mask=inside)


def tile(rows: int, columns: int, rows_per_group: int, elements: int) -> tuple[tuple[int], dict[str, int]]:
    """The launch grid and block shape; FULL when no block sticks out, ONE_GROUP when none spans two heads."""
    block_columns = max(triton.next_power_of_2(columns), 16)
    block_rows = max(elements // block_columns, 1)
    warps = _WARPS if block_columns <= 8192 else 16
    full = columns == block_columns and rows % block_rows == 0
    one = rows_per_group % block_rows == 0
    shape = {
        "FULL": full,
        "ONE_GROUP": one,
        "BLOCK_ROWS": block_rows,
        "BLOCK_COLUMNS": block_columns,
        "num_warps": warps,
        **FUSED,
    }
    return (triton.cdiv(rows, block_rows),), shape


def selection(
    masking: int, valid: torch.Tensor | None, shape: torch.Size
) -> tuple[torch.Tensor | None, list[int]]:
    """`valid` as the kernels take it: a tensor, and (n1, n2, v0, v1, v2, v3) to find a row's part of it.

    v3 steps from column to column of a mask; for lengths it is the first extent.
    """
    if valid is None:
        return None, [1, 1, 0, 0, 0, 0]
    if masking == arguments.MASK:
        return rows_in(valid.expand(shape))
    full, strides = rows_in(valid.expand(shape[:-1]).unsqueeze(-1))
    return full, [*strides[:-1], full.shape[0]]


def rows_in(full: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """A tensor of rows [..., columns] with (n1, n2, v0, v1, v2, v3) that finds a row in it, and its columns.

    Leading dimensions beyond three are merged; only what is broadcast inside them has to be copied for that.
    """
    lead = full.ndim - 1
    full = full.reshape(-1, *full.shape[-3:]) if lead > 3 else full[(None,) * (3 - lead)]
    return full, [full.shape[1], full.shape[2], *full.stride()]


def heads_of(theta: torch.Tensor, lead: torch.Size) -> tuple[torch.Tensor, int]:
    """Head parameters [..., 3 or 6] laid out so that group g uses entry g % heads."""
    shape, numbers = theta.shape[:-1], theta.shape[-1]
    if shape == lead[len(lead) - len(shape) :]:
        return theta.contiguous(), max(theta.numel() // numbers, 1)
    return theta.expand(*lead, numbers).contiguous(), max(lead.numel(), 1)


def softmax(
    x: torch.Tensor,
    theta: HeadParams,
    mode: Mode,
    masking: int,
    valid: torch.Tensor | None,
    out: torch.Tensor,
    threads: int | None,
) -> None:
    """Fill `out` with the probabilities of int8 logits; lengths outside the row are clamped and reported.

    A GPU has its own number of threads: `threads` is ignored.
    """
    faults = fault_bytes(x.device)
    if x.numel() == 0:
        return
    x = x.contiguous()
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    rows_per_group = x.shape[-2] if x.ndim > 1 else 1
    grid, block = tile(rows, columns, rows_per_group, _TILE)
    full = masking == arguments.NO_MASK and block["FULL"] and block["ONE_GROUP"] and columns <= MOST_COLUMNS
    full = full and mode.is_u8 and x.data_ptr() % 16 == out.data_ptr() % 16 == 0 and can_run(x.device)
    packed, heads = heads_of(heads_on(theta, x.device), x.shape[:-2])
    with made_current(x.device):
        if full and heads <= _MOST_PROGRAMS:
            _softmax_of_full_rows(x, theta, mode, out, block)
            return
        chosen, strides = selection(masking, valid, x.shape)
        kernel: Any = _wide_rows if theta.wide else _softmax_rows
        kernel[grid](
            x, packed, chosen, faults if masking == arguments.LENGTHS else None, out, rows, columns,
            rows_per_group, heads, *strides, MASKING=masking, IS_U8=mode.is_u8, RECIPROCAL=mode.reciprocal,
            **block,
        )  # fmt: skip


def _softmax_of_full_rows(
    x: torch.Tensor, theta: HeadParams, mode: Mode, out: torch.Tensor, block: dict[str, int]
) -> None:
    """The same in the uint8 modes for rows that fill blocks, each block inside one head."""
    columns, block_rows = x.shape[-1], block["BLOCK_ROWS"]
    options: dict[str, Any] = {"RECIPROCAL": mode.reciprocal, "WORDS": columns // 4}
    options |= {"BLOCK_ROWS": block_rows, "num_warps": block["num_warps"], **FUSED}
    # A thread loads sixteen bytes of a part, and two threads a sector of memory.
    options["PARTS"] = parts = max(min(_PARTS, columns // 32), 1)
    kernel: Any = full_rows
    table = heads_on(theta, x.device)
    if theta.wide:
        kernel = full_rows_wide
        options |= lines_of(theta, columns, mode, parts)
        table = lines_on(theta, options["SCORES"] == BYTES.value, x.device)
    table, heads = heads_of(table, x.shape[:-2])
    blocks, repetitions = x.numel() // (heads * block_rows * columns), 1
    if heads > 1:
        blocks, repetitions = x.shape[-2] // block_rows, x.numel() // (heads * x.shape[-2] * columns)
    words, results = x.view(-1).view(torch.int32), out.view(-1).view(torch.int32)
    for first in range(0, repetitions, _MOST_PROGRAMS):
        done = first * heads * blocks * block_rows * columns // 4
        grid = (blocks, heads, min(repetitions - first, _MOST_PROGRAMS))
        kernel[grid](words[done:], table, results[done:], **options)


@lru_cache(maxsize=256)
def lines_of(theta: HeadParams, columns: int, mode: Mode, parts: int) -> dict[str, Any]:
    """Options of `full_rows_wide` that depend on the lines, and on how large their sums can be.

    SUMS says how halves may be added. LARGE products need all their bits: with quotients those of scores from
    1024 on and sums from 2^18 on, without them those of sums from 2^17 on.
    """
    scores, largest = how_scores_come_about(theta), columns * theta.max_score
    sums = PACKED if largest // 2 < 2**16 else BY_BLOCK if 2 * parts * theta.max_score < 2**16 else APART
    divides = mode.reciprocal == DIVISION.value
    large = largest >= 2**18 and theta.max_score > 1023 if divides else largest >= 2**17
    return {"SCORES": scores, "SUMS": sums.value, "LARGE": large}
