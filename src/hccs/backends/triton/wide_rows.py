"""Rows of the wide form, two lines and sums of 24 bits: any rows, and whole rows four logits to a word.

As in `packed_rows.py` the work on words is what memory leaves time for. A probability is (s * rho) >> j with
a shift j of the row's own: the reciprocal is moved up so that it ends at the top of the product, where one
instruction gathers the bytes of several.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.codes import BYTES, DIVISION, NO_MASK, ONE_LINE, TWO_LINES
from hccs.backends.triton.formulas import group_of, valid_columns, wide_reciprocal
from hccs.backends.triton.packed_rows import (
    SPELLED_OUT,
    interleaved,
    larger_halves,
    smaller_halves,
    split,
)

# Scores times the reciprocal; what is left beyond the top, of sums from 2^17 on, is moved down.
_HALVES_APART = """
    .reg .b32 a, b, c, d;
    prmt.b32 a, $1, 0, 0x4410;
    prmt.b32 b, $1, 0, 0x4432;
    prmt.b32 c, $2, 0, 0x4410;
    prmt.b32 d, $2, 0, 0x4432;
"""
_UPPER_BYTES_APART = """
    .reg .b32 a, b, c, d;
    prmt.b32 a, $1, 0, 0x4441;
    prmt.b32 b, $1, 0, 0x4443;
    prmt.b32 c, $2, 0, 0x4441;
    prmt.b32 d, $2, 0, 0x4443;
"""
_TIMES = "mul.lo.u32 a, a, $3; mul.lo.u32 b, b, $3; mul.lo.u32 c, c, $3; mul.lo.u32 d, d, $3;"
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
_OF_HALVES, _OF_BYTES = "{" + _HALVES_APART + _TIMES, "{" + _UPPER_BYTES_APART + _TIMES
EXACT = tl.constexpr(_OF_HALVES + _TOP_BYTES + "}")
EXACT_LARGE = tl.constexpr(_OF_HALVES + _MOVED_DOWN + _TOP_BYTES + "}")
EXACT_BYTES = tl.constexpr(_OF_BYTES + _TOP_BYTES + "}")
SATURATED = tl.constexpr(_OF_HALVES + _SATURATED_BYTES + "}")
SATURATED_LARGE = tl.constexpr(_OF_HALVES + _MOVED_DOWN + _SATURATED_BYTES + "}")
SATURATED_BYTES = tl.constexpr(_OF_BYTES + _SATURATED_BYTES + "}")
HALVES = tl.constexpr("""{
    .reg .b32 a, b;
    prmt.b32 a, $1, 0, 0x4410;
    prmt.b32 b, $1, 0, 0x4432;
    mul.lo.u32 a, a, $2;
    mul.lo.u32 b, b, $2;
    shr.u32 a, a, $3;
    shr.u32 b, b, $3;
    prmt.b32 $0, a, b, 0x7632;
}""")
# t = clamp(x - m + D, 0, D), one instruction for a pair; then S*t + S2*t2 + (B - S*D - S2*D2).
_SCORES = tl.constexpr("""{
    .reg .b32 t, u;
    add.s16x2 t, $1, $2;
    min.relu.s16x2 t, t, $3;
    add.s16x2 u, $1, $4;
    min.relu.s16x2 u, u, $5;
    mad.lo.s32 t, t, $6, $8;
    mad.lo.s32 $0, u, $7, t;
}""")
# The sum of two halves, or of the upper bytes of four.
_SUM_OF_HALVES = tl.constexpr(
    "{ .reg .b32 t; dp2a.lo.u32.u32 t, $1, 0x0101, 0; dp2a.lo.u32.u32 $0, $2, 0x0101, t; }"
)
_SUM_OF_BYTES = tl.constexpr(
    "{ .reg .b32 t; prmt.b32 t, $1, $2, 0x7531; dp4a.u32.u32 $0, t, 0x01010101, 0; }"
)


@triton.jit
def pair_of_scores(x, m, B, S, D, S2, D2):
    """B - S*min(m - x, D) - S2*min(m - x, D2) of two logits, each in a half."""
    least = B - S * D - S2 * D2
    if SPELLED_OUT:
        far, near = m * 0x10001 - x, m * 0x10001 - x
        far, near = smaller_halves(far, D * 0x10001), smaller_halves(near, D2 * 0x10001)
        scores = B * 0x10001 - S * far - S2 * near
    else:
        scores = tl.inline_asm_elementwise(
            _SCORES, "=r,r,r,r,r,r,r,r,r",
            [
                x, ((D - m) & 0xFFFF) * 0x10001, D * 0x10001, ((D2 - m) & 0xFFFF) * 0x10001, D2 * 0x10001,
                S, S2, least * 0x10001,
            ],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return scores


@triton.jit
def sum_of_four(even, odd, IN_UPPER_BYTES: tl.constexpr):
    """Of the scores of a word."""
    if SPELLED_OUT:
        if IN_UPPER_BYTES:
            even, odd = (even >> 8) & 0x00FF00FF, (odd >> 8) & 0x00FF00FF
        total = (even & 0xFFFF) + ((even >> 16) & 0xFFFF) + (odd & 0xFFFF) + ((odd >> 16) & 0xFFFF)
    else:
        CODE: tl.constexpr = _SUM_OF_BYTES if IN_UPPER_BYTES else _SUM_OF_HALVES
        total = tl.inline_asm_elementwise(CODE, "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1)
    return total


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
def bytes_of(even, odd, rho, k, RECIPROCAL: tl.constexpr, IN_UPPER_BYTES: tl.constexpr, LARGE: tl.constexpr):
    """min((s * rho) >> (k + 7), 255) of the four scores of a word, as bytes in order."""
    if SPELLED_OUT:
        if IN_UPPER_BYTES:
            even, odd = (even >> 8) & 0x00FF00FF, (odd >> 8) & 0x00FF00FF
        j = k + 7
        word = tl.minimum(((even & 0xFFFF) * rho) >> j, 255)
        word |= tl.minimum(((odd & 0xFFFF) * rho) >> j, 255) << 8
        word |= tl.minimum((((even >> 16) & 0xFFFF) * rho) >> j, 255) << 16
        word |= tl.minimum((((odd >> 16) & 0xFFFF) * rho) >> j, 255) << 24
    else:
        IS_EXACT: tl.constexpr = RECIPROCAL == DIVISION
        TOP: tl.constexpr = 17 if IS_EXACT else 16
        raised = rho << tl.maximum(TOP - k, 0)
        if LARGE:
            CODE: tl.constexpr = EXACT_LARGE if IS_EXACT else SATURATED_LARGE
            word = tl.inline_asm_elementwise(
                CODE, "=r,r,r,r,r", [even, odd, raised, tl.maximum(k - TOP, 0)],
                dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            OF_HALVES: tl.constexpr = EXACT if IS_EXACT else SATURATED
            OF_BYTES: tl.constexpr = EXACT_BYTES if IS_EXACT else SATURATED_BYTES
            SMALL: tl.constexpr = OF_BYTES if IN_UPPER_BYTES else OF_HALVES
            word = tl.inline_asm_elementwise(
                SMALL, "=r,r,r,r", [even, odd, raised], dtype=tl.int32, is_pure=True, pack=1
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
    IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr, SCORES: tl.constexpr, LARGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of 4 * WORDS logits, blocks inside one head, no mask; `out_ptr` steps by four outputs.

    Scores of BYTES come out in the upper bytes of the halves, for the parameters are moved up as far. LARGE
    says that Z may reach 2^17.
    """
    first = tl.program_id(0) * BLOCK_ROWS
    row = first + tl.arange(0, BLOCK_ROWS)
    place = row.to(tl.int64)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    even, odd = split(tl.load(x_ptr + place) ^ -0x7F7F7F80)
    # Divisions of unsigned numbers, which take half as long.
    group = first.to(tl.uint32) // rows_per_group.to(tl.uint32)
    B, S, D, S2, D2, f = six_parameters(theta_ptr, (group % heads.to(tl.uint32)).to(tl.int32) * 6)
    IN_UPPER_BYTES: tl.constexpr = SCORES == BYTES and IS_U8 and not LARGE
    if IN_UPPER_BYTES:
        B, S, S2 = B << (8 - f), S << (8 - f), S2 << (8 - f)
    pair = tl.reduce(larger_halves(even, odd), 1, larger_halves)
    m = tl.maximum(pair & 0xFFFF, pair >> 16)[:, None]
    even, odd = pair_of_scores(even, m, B, S, D, S2, D2), pair_of_scores(odd, m, B, S, D, S2, D2)
    if SCORES != TWO_LINES and SCORES != ONE_LINE and not IN_UPPER_BYTES:
        kept = (0xFFFF >> f) * 0x10001
        even, odd = (even >> f) & kept, (odd >> f) & kept
    Z = tl.sum(sum_of_four(even, odd, IN_UPPER_BYTES), axis=1)
    rho, k = wide_reciprocal(tl.maximum(Z, 1)[:, None], IS_U8, RECIPROCAL)
    if IS_U8:
        tl.store(out_ptr + place, bytes_of(even, odd, rho, k, RECIPROCAL, IN_UPPER_BYTES, LARGE))
    else:
        low, high = interleaved(halves_of(even, rho, k, RECIPROCAL), halves_of(odd, rho, k, RECIPROCAL))
        four = low.to(tl.uint32, bitcast=True).to(tl.int64) | (high.to(tl.int64) << 32)
        tl.store(out_ptr + place, four)
