"""The row kernel for CUDA tensors, in Triton: one pass over memory, the same bits as every other backend.

All integers stay at or below 2^24, so float32 carries them exactly, and a GPU has twice the rate in it that
it has in
int32. `scores` and `probabilities` are shared with the fused training kernels of `hccs.nn`; each formula
carries its
number from the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from hccs.spec import Mode

NO_MASK, LENGTHS, MASK = range(3)

# A float32 near 1.5 * 2^23 has no fraction bits and its low bits are an integer: adding this rounds half to
# even, and
# the bits of OFFSET + p are those of p. Conversion instructions, four times slower, are not needed.
OFFSET = tl.constexpr(12582912.0)

# Elements one program handles, and its warps. The uint8 modes move two bytes an element and not three: they
# need more
# elements to a program to spread what is done once per row (measured by benchmarks/softmax_gpu.py --tune).
_TILE = {"i16": 4096, "u8": 8192}
_WARPS = 4


@triton.jit
def valid_columns(
    valid_ptr, row, column, inside, n1, n2, v0, v1, v2, v3, MASKING: tl.constexpr
):  # fmt: skip
    """Which of a tile's elements take part: its columns, its row's length, or a strided boolean mask."""
    if MASKING == 0:
        chosen = inside
    else:
        start = (row // (n1 * n2)).to(tl.int64) * v0 + ((row // n2) % n1) * v1 + (row % n2) * v2
        if MASKING == 1:
            length = tl.load(valid_ptr + start, mask=row < n1 * n2 * v3, other=0)
            chosen = inside & (column[None, :] < length[:, None])
        else:
            position = start[:, None] + column[None, :] * v3
            chosen = inside & (tl.load(valid_ptr + position, mask=inside, other=0) != 0)
    return chosen


@triton.jit
def group_of(row, rows_per_group, ONE_GROUP: tl.constexpr):
    """The group of each row; a number when the block lies in one, which spares a division per row."""
    if ONE_GROUP:
        group = tl.min(row, axis=0) // rows_per_group
    else:
        group = row // rows_per_group
    return group


@triton.jit
def head_parameters(theta_ptr, group, heads, ONE_GROUP: tl.constexpr):
    """(B, S, D) of each row's head, rounded to integers where they are being learnt as floats."""
    head = (group % heads) * 3
    B = nearest(tl.load(theta_ptr + head).to(tl.float32))
    S = nearest(tl.load(theta_ptr + head + 1).to(tl.float32))
    D = nearest(tl.load(theta_ptr + head + 2).to(tl.float32))
    if not ONE_GROUP:
        B, S, D = B[:, None], S[:, None], D[:, None]
    return B, S, D


@triton.jit
def nearest(value):
    """Round half to even."""
    return (value + OFFSET) - OFFSET


@triton.jit
def as_offset_float(x):
    """2^23 + 128 + x for int8 x: the byte, its sign bit turned, placed under the exponent of 2^23."""
    return (x.to(tl.uint8, bitcast=True).to(tl.int32) ^ 0x4B000080).to(tl.float32, bitcast=True)


@triton.jit
def scores(x, valid, columns, B, S, D, LOWEST: tl.constexpr, ALL: tl.constexpr):
    """Row maximum m, distance m - x, clamped distance delta, and the sum of scores Z (eq. 2, 3, 5)."""
    if ALL:
        m = tl.max(x, axis=1)[:, None]
        delta = tl.minimum(m - x, D)
        Z = columns * B - S * tl.sum(delta, axis=1)[:, None]
    else:
        m = tl.max(tl.where(valid, x, LOWEST), axis=1)[:, None]
        delta = tl.minimum(m - x, D)
        Z = tl.maximum(tl.sum(tl.where(valid, B - S * delta, 0.0), axis=1), 1.0)[:, None]
    return m, m - x, delta, Z


@triton.jit
def reciprocal(Z, IS_U8: tl.constexpr, IS_CLB: tl.constexpr):
    """rho * 2^e (eq. 6, 8, 9): the short-row scaling by 2^e of s moves into the reciprocal."""
    numerator: tl.constexpr = 255 << 15 if IS_U8 else 32767
    k = (Z.to(tl.int32, bitcast=True) >> 23) - 127
    e = tl.maximum(8 - k, 0) if IS_U8 else 0
    if IS_CLB:
        rho = (numerator >> (k + e)).to(tl.float32)
    else:
        # The quick quotient may be one off; its remainder, exact in float32, says which way.
        scaled = (Z.to(tl.int32) << e).to(tl.float32) if IS_U8 else Z
        rho = tl.floor(numerator / scaled)
        remainder = numerator - rho * scaled
        rho = rho + tl.where(remainder >= scaled, 1.0, 0.0) - tl.where(remainder < 0, 1.0, 0.0)
    if IS_U8:
        rho = (rho.to(tl.int32) << e).to(tl.float32)
    return rho


@triton.jit
def probabilities(delta, valid, Z, B, S, IS_U8: tl.constexpr, IS_CLB: tl.constexpr, ALL: tl.constexpr):
    """OFFSET + p_hat (eq. 7): s * rho, shifted for uint8, saturated where the leading bit overestimates."""
    rho = reciprocal(Z, IS_U8, IS_CLB)
    if IS_U8:
        # Multiples of 2^-15 moved down by just under a half: rounding to nearest is then the shift's floor.
        rho = rho * 0.000030517578125
        p = ((B * rho - 0.4999847412109375) - (S * rho) * delta) + OFFSET
    else:
        p = (B * rho + OFFSET) - (S * rho) * delta
    if IS_CLB:
        p = tl.minimum(p, OFFSET + (255.0 if IS_U8 else 32767.0))
    if not ALL:
        p = tl.where(valid, p, OFFSET)
    return p


@triton.jit
def _softmax_rows(
    x_ptr, theta_ptr, valid_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr, IS_CLB:
    tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + place) if FULL else tl.load(x_ptr + place, mask=inside, other=-128)
    ALL: tl.constexpr = FULL and MASKING == 0
    valid = inside if ALL else valid_columns(valid_ptr, row, column, inside, n1, n2, v0, v1, v2, v3, MASKING)
    group = group_of(row, rows_per_group, ONE_GROUP)
    B, S, D = head_parameters(theta_ptr, group, heads, ONE_GROUP)
    _, _, delta, Z = scores(as_offset_float(x), valid, columns, B, S, D, 8388608.0, ALL)
    p = probabilities(delta, valid, Z, B, S, IS_U8, IS_CLB, ALL)
    p = p.to(tl.int32, bitcast=True).to(out_ptr.dtype.element_ty)
    if FULL:
        tl.store(out_ptr + place, p)
    else:
        tl.store(out_ptr + place, p, mask=inside)


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
    }
    return (triton.cdiv(rows, block_rows),), shape


def selection(valid: torch.Tensor | None, shape: torch.Size) -> tuple[torch.Tensor | None, list[int], int]:
    """`valid` as the kernels take it: a tensor, (n1, n2, v0, v1, v2, v3) to find a row's part of it, its
    kind.

    v3 steps from column to column of a mask; for lengths it is the first extent.

    Leading dimensions beyond three are merged; only a mask broadcast inside them has to be copied for that.
    """
    if valid is None:
        return None, [1, 1, 0, 0, 0, 0], NO_MASK
    kind = MASK if valid.dtype == torch.bool else LENGTHS
    lead = shape[:-1]
    full = valid.expand(shape if kind == MASK else lead)
    if kind == LENGTHS:
        full = full.unsqueeze(-1)
    full = full.reshape(-1, *full.shape[-3:]) if len(lead) > 3 else full[(None,) * (3 - len(lead))]
    strides = [*full.stride()[:3], full.shape[0] if kind == LENGTHS else full.stride(3)]
    return full, [full.shape[1], full.shape[2], *strides], kind


def heads_of(theta: torch.Tensor, lead: torch.Size) -> tuple[torch.Tensor, int]:
    """Head parameters [..., 3] laid out so that group g uses entry g % heads."""
    shape = theta.shape[:-1]
    if shape == lead[len(lead) - len(shape) :]:
        return theta.contiguous(), max(theta.numel() // 3, 1)
    return theta.expand(*lead, 3).contiguous(), max(lead.numel(), 1)


def softmax(
    x: torch.Tensor, theta: torch.Tensor, mode: Mode, valid: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Fill `out` with the probabilities of contiguous int8 logits; `hccs.softmax` has checked them."""
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    packed, heads = heads_of(theta, x.shape[:-2])
    chosen, strides, kind = selection(valid, x.shape)
    rows_per_group = x.shape[-2] if x.ndim > 1 else 1
    grid, block = tile(rows, columns, rows_per_group, _TILE["u8" if mode.is_u8 else "i16"])
    kernel: Any = _softmax_rows
    kernel[grid](
        x, packed, chosen, out, rows, columns, rows_per_group, heads, *strides,
        MASKING=kind, IS_U8=mode.is_u8, IS_CLB=mode.is_clb, **block,
    )  # fmt: skip
