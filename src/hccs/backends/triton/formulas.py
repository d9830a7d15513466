"""The function in Triton, formula by formula, for the row kernels and `hccs.nn`'s fused training kernels.

All integers stay at or below 2^24, so float32 carries them exactly, and a GPU has twice the rate in it that
it has in int32. Each formula carries its number from the paper.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.codes import DIVISION, LEADING_BIT, LENGTHS, LINE, NO_MASK
from hccs.backends.triton.faults import LENGTH
from hccs.numbers.modes import LINEAR_TOP

# A float32 near 1.5 * 2^23 has no fraction bits and its low bits are an integer: adding this rounds half to
# even, and the bits of OFFSET + p are those of p. Conversion instructions, four times slower, are not needed.
OFFSET = tl.constexpr(12582912.0)
LINEAR = tl.constexpr(LINEAR_TOP)


@triton.jit
def mark(fault_ptr, FAULT: tl.constexpr, where):
    """Report a fault to the host where any of these is true."""
    tl.store(fault_ptr + FAULT + tl.zeros_like(where).to(tl.int32), where.to(tl.int8), mask=where)


@triton.jit
def inside_row(length, columns, fault_ptr):
    """The length of each row; lengths outside the row are clamped and reported."""
    mark(fault_ptr, LENGTH, (length < 0) | (length > columns))
    return tl.minimum(tl.maximum(length, 0), columns).to(tl.int32)


@triton.jit
def block_of_rows(rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Rows and columns of a program's block, which of its elements there are, and their places."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return row, column, inside, row.to(tl.int64)[:, None] * columns + column[None, :]


@triton.jit
def valid_columns(
    valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING: tl.constexpr
):  # fmt: skip
    """Which of a tile's elements take part: its columns, its row's length, or a strided boolean mask."""
    if MASKING == NO_MASK:
        chosen = inside
    else:
        i0, i1, i2 = row // (n1 * n2), (row // n2) % n1, row % n2
        start = i0.to(tl.int64) * v0 + i1.to(tl.int64) * v1 + i2.to(tl.int64) * v2
        if MASKING == LENGTHS:
            length = tl.load(valid_ptr + start, mask=row < n1 * n2 * v3, other=0)
            chosen = inside & (column[None, :] < inside_row(length, columns, fault_ptr)[:, None])
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
def is_runnable(B, S, D, columns):
    """What `HeadParams` and its `require_columns` take; no comparison with NaN is true."""
    region = (D >= 1.0) & (D <= 127.0) & (S >= 0.0) & (S <= 127.0) & (B >= 1.0) & (S * D <= B)
    return region & (columns * B <= 32767.0)


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
def linear_reciprocal(M):
    """Eight bits of a line in M, which is Z brought to 16 bits."""
    return (-(M >> 1) + LINEAR) * 255 >> 15


@triton.jit
def reciprocal(Z, IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr):
    """rho * 2^e (eq. 6, 8, 9): the short-row scaling by 2^e of s moves into the reciprocal."""
    numerator: tl.constexpr = 255 << 15 if IS_U8 else 32767
    k = (Z.to(tl.int32, bitcast=True) >> 23) - 127
    e = tl.maximum(8 - k, 0) if IS_U8 else 0
    if RECIPROCAL == LEADING_BIT:
        rho = (numerator >> (k + e)).to(tl.float32)
    elif RECIPROCAL == LINE:
        # k <= 14: Z stays below 2^15, and what e moves it by is part of what brings it to 16 bits.
        rho = (linear_reciprocal(Z.to(tl.int32) << (15 - k)) << (15 - k - e)).to(tl.float32)
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
def wide_reciprocal(Z, IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr):
    """rho and k of the wide form (docs/spec.md): p_hat is (s * rho) >> (k + 7), of int16 modes >> k."""
    k = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    left, right = tl.maximum(15 - k, 0), tl.maximum(k - 15, 0)
    if RECIPROCAL == LEADING_BIT:
        rho = tl.zeros_like(Z) + (255 << 7 if IS_U8 else 32767)
    elif RECIPROCAL == LINE:
        rho = linear_reciprocal((Z << left) >> right) << 7
    else:
        numerator: tl.constexpr = 255 << 22 if IS_U8 else 32767 << 15
        M = ((Z << left) + (1 << right) - 1) >> right
        # As above: the quick quotient, below 2^15, may be one off, which its remainder tells.
        rho = ((numerator * 1.0) / M.to(tl.float32)).to(tl.int32)
        remainder = numerator - rho * M
        rho = rho + tl.where(remainder >= M, 1, 0) - tl.where(remainder < 0, 1, 0)
    return rho, k


@triton.jit
def probabilities(delta, valid, Z, B, S, IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr, ALL: tl.constexpr):
    """OFFSET + p_hat (eq. 7): s * rho, shifted for uint8, saturated where the reciprocal overestimates."""
    rho = reciprocal(Z, IS_U8, RECIPROCAL)
    if IS_U8:
        # Multiples of 2^-15 moved down by just under a half: rounding to nearest is then the shift's floor.
        rho = rho * 0.000030517578125
        p = ((B * rho - 0.4999847412109375) - (S * rho) * delta) + OFFSET
    else:
        p = (B * rho + OFFSET) - (S * rho) * delta
    if RECIPROCAL != DIVISION:
        p = tl.minimum(p, OFFSET + (255.0 if IS_U8 else 32767.0))
    if not ALL:
        p = tl.where(valid, p, OFFSET)
    return p
