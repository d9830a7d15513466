"""Rows of the wide form, two lines and sums of 24 bits: any rows, and whole rows four logits to a word.

As in `packed_rows.py` the work on words is what memory leaves time for. A probability is (s * rho) >> j with a
shift j of the row's own: the reciprocal is moved up so that it ends at the top of the product, where one
instruction gathers the bytes of several.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.codes import DIVISION, NO_MASK
from hccs.backends.triton.formulas import group_of, valid_columns, wide_reciprocal
from hccs.backends.triton.packed_rows import (
    SPELLED_OUT,
    interleaved,
    larger_halves,
    smaller_halves,
    split,
)

MOST_SHIFTED = 131070
"""Columns times the largest score where shifted scores are added as halves of words: half of them each."""

# Four scores times the reciprocal; what is left beyond the top, of sums from 2^17 on, is moved down.
_PRODUCTS = """
    .reg .b32 a, b, c, d;
    and.b32 a, $1, 0xffff;
    shr.u32 b, $1, 16;
    and.b32 c, $2, 0xffff;
    shr.u32 d, $2, 16;
    mul.lo.u32 a, a, $3;
    mul.lo.u32 b, b, $3;
    mul.lo.u32 c, c, $3;
    mul.lo.u32 d, d, $3;
"""
_MOVED_DOWN = "shr.u32 a, a, $4; shr.u32 b, b, $4; shr.u32 c, c, $4; shr.u32 d, d, $4;"
_TOP_BYTES = "prmt.b32 a, a, c, 0x0073; prmt.b32 b, b, d, 0x0073; prmt.b32 $0, a, b, 0x5410;"
# One bit lower, so that a result up to 511 fits: saturated in halves of words.
_SATURATED_BYTES = """
    .reg .b32 top;
    mov.b32 top, 0x7fff7fff;
    prmt.b32 a, a, b, 0x7632;
    prmt.b32 c, c, d, 0x7632;
    min.u16x2 a, a, top;
    min.u16x2 c, c, top;
    shr.u32 a, a, 7;
    shr.u32 c, c, 7;
    prmt.b32 $0, a, c, 0x6240;
"""
EXACT = tl.constexpr("{" + _PRODUCTS + _TOP_BYTES + "}")
EXACT_LARGE = tl.constexpr("{" + _PRODUCTS + _MOVED_DOWN + _TOP_BYTES + "}")
SATURATED = tl.constexpr("{" + _PRODUCTS + _SATURATED_BYTES + "}")
SATURATED_LARGE = tl.constexpr("{" + _PRODUCTS + _MOVED_DOWN + _SATURATED_BYTES + "}")
_TOP_HALVES = "prmt.b32 $0, a, b, 0x7632;"
_PRODUCTS_OF_TWO = """
    .reg .b32 a, b;
    and.b32 a, $1, 0xffff;
    shr.u32 b, $1, 16;
    mul.lo.u32 a, a, $2;
    mul.lo.u32 b, b, $2;
    shr.u32 a, a, $3;
    shr.u32 b, b, $3;
"""
HALVES = tl.constexpr("{" + _PRODUCTS_OF_TWO + _TOP_HALVES + "}")


@triton.jit
def six_parameters(theta_ptr, head):
    """B, S, D, S2, D2, f."""
    upper = (tl.load(theta_ptr + head), tl.load(theta_ptr + head + 1), tl.load(theta_ptr + head + 2))
    lower = (tl.load(theta_ptr + head + 3), tl.load(theta_ptr + head + 4), tl.load(theta_ptr + head + 5))
    return upper + lower


@triton.jit
def wide_rows(
    x_ptr, theta_ptr, valid_ptr, fault_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr,
    RECIPROCAL: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Any rows, in int32."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=-128).to(tl.int32)
    ALL: tl.constexpr = FULL and MASKING == NO_MASK
    valid = inside
    if not ALL:
        valid = valid_columns(
            valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING
        )
    B, S, D, S2, D2, f = six_parameters(theta_ptr, (group_of(row, rows_per_group, ONE_GROUP) % heads) * 6)
    if not ONE_GROUP:
        B, S, D, S2, D2, f = B[:, None], S[:, None], D[:, None], S2[:, None], D2[:, None], f[:, None]
    distance = tl.max(tl.where(valid, x, -128), axis=1)[:, None] - x
    s = (B - S * tl.minimum(distance, D) - S2 * tl.minimum(distance, D2)) >> f
    s = tl.where(valid, s, 0)
    rho, k = wide_reciprocal(tl.maximum(tl.sum(s, axis=1), 1)[:, None], IS_U8, RECIPROCAL)
    p = tl.minimum((s * rho) >> (k + (7 if IS_U8 else 0)), 255 if IS_U8 else 32767)
    tl.store(out_ptr + place, p.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def bytes_of(even, odd, rho, k, RECIPROCAL: tl.constexpr, LARGE: tl.constexpr):
    """min((s * rho) >> (k + 7), 255) of the four scores of a word, as bytes in order."""
    if SPELLED_OUT:
        j = k + 7
        word = tl.minimum(((even & 0xFFFF) * rho) >> j, 255)
        word |= tl.minimum(((odd & 0xFFFF) * rho) >> j, 255) << 8
        word |= tl.minimum((((even >> 16) & 0xFFFF) * rho) >> j, 255) << 16
        word |= tl.minimum((((odd >> 16) & 0xFFFF) * rho) >> j, 255) << 24
    else:
        TOP: tl.constexpr = 17 if RECIPROCAL == DIVISION else 16
        raised = rho << tl.maximum(TOP - k, 0)
        if LARGE:
            CODE: tl.constexpr = EXACT_LARGE if RECIPROCAL == DIVISION else SATURATED_LARGE
            word = tl.inline_asm_elementwise(
                CODE, "=r,r,r,r,r", [even, odd, raised, tl.maximum(k - TOP, 0)],
                dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            SHORT_CODE: tl.constexpr = EXACT if RECIPROCAL == DIVISION else SATURATED
            word = tl.inline_asm_elementwise(
                SHORT_CODE, "=r,r,r,r", [even, odd, raised], dtype=tl.int32, is_pure=True, pack=1
            )
    return word


@triton.jit
def halves_of(pair, rho, k, RECIPROCAL: tl.constexpr):
    """min((s * rho) >> k, 32767) of two scores."""
    if SPELLED_OUT:
        upper = tl.minimum((((pair >> 16) & 0xFFFF) * rho) >> k, 32767)
        word = tl.minimum(((pair & 0xFFFF) * rho) >> k, 32767) | (upper << 16)
    else:
        word = tl.inline_asm_elementwise(
            HALVES, "=r,r,r,r", [pair, rho << tl.maximum(16 - k, 0), tl.maximum(k - 16, 0)],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        if RECIPROCAL != DIVISION:
            word = smaller_halves(word, 0x7FFF7FFF)
    return word


@triton.jit
def wide_words(
    x_ptr, theta_ptr, out_ptr, rows_per_group, heads,
    IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr, SHIFTED: tl.constexpr, LARGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of 4 * WORDS logits, blocks inside one head, no mask; `out_ptr` steps by four outputs.

    Without a shift Z is linear in two clamped distances, each of which fits a half of a word even when half a
    row of them is added; shifted scores are added themselves. LARGE says that Z may reach 2^17.
    """
    first = tl.program_id(0) * BLOCK_ROWS
    row = first + tl.arange(0, BLOCK_ROWS)
    place = row.to(tl.int64)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    even, odd = split(tl.load(x_ptr + place) ^ -0x7F7F7F80)
    B, S, D, S2, D2, f = six_parameters(theta_ptr, (first // rows_per_group % heads) * 6)
    pair = tl.reduce(larger_halves(even, odd), 1, larger_halves)
    m = (tl.maximum(pair & 0xFFFF, pair >> 16) * 0x10001)[:, None]
    even, odd = m - even, m - odd
    far_even, far_odd = smaller_halves(even, D * 0x10001), smaller_halves(odd, D * 0x10001)
    even, odd = smaller_halves(even, D2 * 0x10001), smaller_halves(odd, D2 * 0x10001)
    far, near = far_even + far_odd, even + odd
    even = B * 0x10001 - S * far_even - S2 * even
    odd = B * 0x10001 - S * far_odd - S2 * odd
    if SHIFTED:
        kept = (0xFFFF >> f) * 0x10001
        even, odd = (even >> f) & kept, (odd >> f) & kept
        total = tl.sum(even + odd, axis=1)
        Z = (total & 0xFFFF) + ((total >> 16) & 0xFFFF)
    else:
        far, near = tl.sum(far, axis=1), tl.sum(near, axis=1)
        far, near = (far & 0xFFFF) + ((far >> 16) & 0xFFFF), (near & 0xFFFF) + ((near >> 16) & 0xFFFF)
        Z = 4 * WORDS * B - S * far - S2 * near
    rho, k = wide_reciprocal(tl.maximum(Z, 1)[:, None], IS_U8, RECIPROCAL)
    if IS_U8:
        tl.store(out_ptr + place, bytes_of(even, odd, rho, k, RECIPROCAL, LARGE))
    else:
        low, high = interleaved(halves_of(even, rho, k, RECIPROCAL), halves_of(odd, rho, k, RECIPROCAL))
        four = low.to(tl.uint32, bitcast=True).to(tl.int64) | (high.to(tl.int64) << 32)
        tl.store(out_ptr + place, four)
