"""The row kernel for CUDA tensors, in Triton: one pass over memory, the same bits as every other backend.

`scores` and `reciprocal` are shared with the fused training kernels of `hccs.nn`. All integers stay below 2^24
and are exact in int32; each formula carries its number from the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from hccs.spec import Mode

NO_MASK, LENGTHS, MASK = range(3)

# Elements one program handles, and its warps: 32 elements a thread keep enough loads in flight.
_TILE = 4096
_WARPS = 4


@triton.jit
def valid_columns(
    valid_ptr, row, column, inside, n1, n2, v0, v1, v2, v3, MASKING: tl.constexpr
):  # fmt: skip
    """Which of a tile's elements take part: its columns, its row's length, or a strided boolean mask."""
    if MASKING == 0:
        chosen = inside
    else:
        start = (row // (n1 * n2)) * v0 + ((row // n2) % n1) * v1 + (row % n2) * v2
        if MASKING == 1:
            length = tl.load(valid_ptr + start, mask=row >= 0, other=0)
            chosen = inside & (column[None, :] < length[:, None])
        else:
            position = start[:, None] + column[None, :] * v3
            chosen = inside & (tl.load(valid_ptr + position, mask=inside, other=0) != 0)
    return chosen


@triton.jit
def head_parameters(theta_ptr, row, live, rows_per_group, heads):
    """(B, S, D) of each row's head, rounded to integers where they are being learnt as floats."""
    head = (row // rows_per_group) % heads
    B = nearest(tl.load(theta_ptr + head * 3, mask=live, other=1))
    S = nearest(tl.load(theta_ptr + head * 3 + 1, mask=live, other=0))
    D = nearest(tl.load(theta_ptr + head * 3 + 2, mask=live, other=1))
    return B[:, None], S[:, None], D[:, None]


@triton.jit
def nearest(value):
    """Round half to even: adding 1.5 * 2^23 leaves no fraction bits in a float32."""
    if value.dtype.is_floating():
        value = ((value.to(tl.float32) + 12582912.0) - 12582912.0).to(tl.int32)
    return value


@triton.jit
def scores(x, valid, B, S, D):
    """Row maximum m, unclamped distance m - x, scores s and their sum Z (eq. 2, 3, 5)."""
    m = tl.max(tl.where(valid, x, -128), axis=1)[:, None]
    distance = m - x
    s = tl.where(valid, B - S * tl.minimum(distance, D), 0)
    Z = tl.maximum(tl.sum(s, axis=1), 1)[:, None]
    return m, distance, s, Z


@triton.jit
def reciprocal(Z, IS_U8: tl.constexpr, IS_CLB: tl.constexpr):
    """rho * 2^e (eq. 6, 8, 9): the short-row scaling by 2^e of s moves into the reciprocal."""
    k = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    if IS_U8:
        e = tl.maximum(8 - k, 0)
        numerator = 255 << 15
    else:
        e = k * 0
        numerator = 32767
    if IS_CLB:
        rho = numerator >> (k + e)
    else:
        rho = numerator // (Z << e)
    return rho << e


@triton.jit
def probabilities(s, Z, IS_U8: tl.constexpr, IS_CLB: tl.constexpr):
    """p_hat (eq. 7): s * rho, shifted for uint8, saturated where the leading bit overestimates."""
    p = s * reciprocal(Z, IS_U8, IS_CLB)
    if IS_U8:
        p = p >> 15
        if IS_CLB:
            p = tl.minimum(p, 255)
    elif IS_CLB:
        p = tl.minimum(p, 32767)
    return p


@triton.jit
def _softmax_rows(
    x_ptr, theta_ptr, valid_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, IS_U8: tl.constexpr, IS_CLB: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    live = row < rows
    inside = live[:, None] & (column < columns)[None, :]
    place = row[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=-128).to(tl.int32)
    valid = valid_columns(valid_ptr, row, column, inside, n1, n2, v0, v1, v2, v3, MASKING)
    B, S, D = head_parameters(theta_ptr, row, live, rows_per_group, heads)
    _, _, s, Z = scores(x, valid, B, S, D)
    p = probabilities(s, Z, IS_U8, IS_CLB)
    tl.store(out_ptr + place, p.to(out_ptr.dtype.element_ty), mask=inside)


def tile(rows: int, columns: int) -> tuple[tuple[int], dict[str, int]]:
    """The launch grid and block shape for rows of this length."""
    block_columns = max(triton.next_power_of_2(columns), 16)
    block_rows = max(_TILE // block_columns, 1)
    warps = _WARPS if block_columns <= 2 * _TILE else 16
    shape = {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns, "num_warps": warps}
    return (triton.cdiv(rows, block_rows),), shape


def selection(valid: torch.Tensor | None, shape: torch.Size) -> tuple[torch.Tensor | None, list[int], int]:
    """`valid` as the kernels take it: a tensor, (n1, n2, v0, v1, v2, v3) to find a row's part of it, its kind.

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
    return full, [full.shape[1], full.shape[2], *full.stride()], kind


def heads_of(theta: torch.Tensor, lead: torch.Size) -> tuple[torch.Tensor, int]:
    """Head parameters [..., 3] laid out so that group g uses entry g % heads."""
    shape = theta.shape[:-1]
    if shape == lead[len(lead) - len(shape) :]:
        return theta.contiguous(), max(theta.numel() // 3, 1)
    return theta.expand(*lead, 3).contiguous(), max(lead.numel(), 1)


def softmax(x: torch.Tensor, theta: torch.Tensor, mode: Mode, valid: torch.Tensor | None, out: torch.Tensor) -> None:
    """Fill `out` with the probabilities of contiguous int8 logits; arguments come checked by `hccs.softmax`."""
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    packed, heads = heads_of(theta, x.shape[:-2])
    chosen, strides, kind = selection(valid, x.shape)
    grid, block = tile(rows, columns)
    rows_per_group = x.shape[-2] if x.ndim > 1 else 1
    kernel: Any = _softmax_rows
    kernel[grid](
        x, packed, chosen, out, rows, columns, rows_per_group, heads, *strides,
        MASKING=kind, IS_U8=mode.is_u8, IS_CLB=mode.is_clb, **block,
    )  # fmt: skip
