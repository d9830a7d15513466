"""One query on many keys in one launch: a program for each head, where there are heads enough for the GPU.

A program reads k, keeps the logits of its row in registers, two to a word, and reads v: nothing but the
output is written. Memory is never idle between the two, as loads run ahead of what is computed, those of v
before the row's maximum is known. Keys i and i + ROWS of a block make a word: their bytes of v meet in one
product of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.one_query import SPELLED_OUT, byte_of, four_products
from hccs.backends.triton.attention.packed_logits import (
    distances,
    larger_of_pairs,
    larger_of_plain_pairs,
    scores_of_pairs,
    word_of_logits,
)
from hccs.backends.triton.attention.steps import limits_of, output_of, parameters_of
from hccs.backends.triton.codes import PAIR

# Bytes of two keys, side by side by columns; scores of both keys times each pair.
_SUMS_OF_FOUR_COLUMNS = tl.constexpr("""{
    .reg .b32 x, y, a, b, c, d;
    prmt.b32 x, $4, $5, 0x5140;
    prmt.b32 y, $4, $5, 0x7362;
    dp2a.lo.s32.s32 a, $6, x, $7;
    dp2a.hi.s32.s32 b, $6, x, $8;
    dp2a.lo.s32.s32 c, $6, y, $9;
    dp2a.hi.s32.s32 d, $6, y, $10;
    mov.b32 $0, a;
    mov.b32 $1, b;
    mov.b32 $2, c;
    mov.b32 $3, d;
}""")


@triton.jit
def half_block(ptr, number, stride, left, HALF: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr):
    """ROWS rows of a block of twice as many; those from `left` on hold anything."""
    first = 2 * ROWS * number + HALF * ROWS
    place = ptr + first * stride
    return tl.load(place) if ALL else tl.load(place, mask=left > first)


@triton.jit
def block_of_words(
    k_ptr, v_ptr, number, k2, v2, left, ALL: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """Both halves of a block; the blocks of v are counted on from those of k."""
    if number < BLOCKS:
        lower = half_block(k_ptr, number, k2, left, 0, ALL, ROWS)
        upper = half_block(k_ptr, number, k2, left, 1, ALL, ROWS)
    else:
        lower = half_block(v_ptr, number - BLOCKS, v2, left, 0, ALL, ROWS)
        upper = half_block(v_ptr, number - BLOCKS, v2, left, 1, ALL, ROWS)
    return lower, upper


@triton.jit
def ones_before(left, block, ROWS: tl.constexpr):
    """Ones in the halves of words whose keys lie before the row's limit."""
    first = 2 * ROWS * block
    return tl.where(left > first, 0xFFFF, 0) | tl.where(left > first + ROWS, -65536, 0)


@triton.jit
def with_products(sums, scores, lower, upper, HOPPER: tl.constexpr):
    """Sums of four columns, each with the scores of two keys times their bytes added."""
    if HOPPER and not SPELLED_OUT:
        more = tl.inline_asm_elementwise(
            _SUMS_OF_FOUR_COLUMNS, "=r,=r,=r,=r,r,r,r,r,r,r,r",
            [lower, upper, scores, sums[0], sums[1], sums[2], sums[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        even, odd = scores & 0xFFFF, scores >> 16
        more = (
            sums[0] + even * byte_of(lower, 0, HOPPER) + odd * byte_of(upper, 0, HOPPER),
            sums[1] + even * byte_of(lower, 1, HOPPER) + odd * byte_of(upper, 1, HOPPER),
            sums[2] + even * byte_of(lower, 2, HOPPER) + odd * byte_of(upper, 2, HOPPER),
            sums[3] + even * byte_of(lower, 3, HOPPER) + odd * byte_of(upper, 3, HOPPER),
        )
    return more


@triton.jit
def with_both_halves(total, scores, HOPPER: tl.constexpr):
    """The sum with both scores of a word added."""
    if HOPPER and not SPELLED_OUT:
        total = tl.inline_asm_elementwise(
            "dp2a.lo.s32.s32 $0, $1, 0x101, $2;", "=r,r,r", [scores, total],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        total += (scores & 0xFFFF) + (scores >> 16)
    return total


@triton.jit(do_not_specialize=["nk"])
def attention_of_one(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nk, heads, q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr,
    HOPPER: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, AHEAD: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """All of a head's row, loads AHEAD blocks in front; strides of q, k and v count words.

    DENSE says that rows of k and v follow one another, so that places are known when this is compiled.
    """
    if DENSE:
        k2, v2 = D // 4, D // 4
    row = tl.program_id(0)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    column, key = tl.arange(0, D // 4), tl.arange(0, ROWS)
    k_ptr += batch * k0 + head * k1 + key[:, None] * k2 + column[None, :]
    v_ptr += batch * v0 + head * v1 + key[:, None] * v2 + column[None, :]
    limit = limits_of(
        valid_ptr, fault_ptr, row, tl.zeros([1], tl.int32), 1, nk, n1, s0, s1, s2, MASKING, CAUSAL
    )
    left = tl.max(limit, axis=0) - key
    loaded = ()
    for j in tl.static_range(AHEAD):
        loaded = loaded + (block_of_words(k_ptr, v_ptr, j, k2, v2, left[:, None], ALL, ROWS, BLOCKS),)
    parameters = parameters_of(table_ptr + batch * t0 + head * t1, SCORES)
    B, S, reach, S2, D2, f, multiplier, shift, out_multiplier, out_shift, v_scale = parameters
    q = tl.load(q_ptr + batch * q0 + head * q1 + column)[None, :]
    words = ()
    peaks = tl.zeros([ROWS], tl.int32)
    for j in tl.static_range(BLOCKS):
        if j + AHEAD < 2 * BLOCKS:
            more = block_of_words(k_ptr, v_ptr, j + AHEAD, k2, v2, left[:, None], ALL, ROWS, BLOCKS)
            loaded = loaded + (more,)
        even = tl.sum(four_products(loaded[j][0], q, HOPPER), axis=1)
        odd = tl.sum(four_products(loaded[j][1], q, HOPPER), axis=1)
        pairs = word_of_logits(even, odd, multiplier, shift, HOPPER)
        if not ALL:
            pairs = pairs & ones_before(left, j, ROWS)
        peaks = larger_of_pairs(peaks, pairs) if HOPPER else larger_of_plain_pairs(peaks, pairs)
        words = words + (pairs,)
    if HOPPER:
        both = tl.reduce(peaks, 0, larger_of_pairs)
    else:
        both = tl.reduce(peaks, 0, larger_of_plain_pairs)
    line = distances(tl.maximum(both & 0xFFFF, both >> 16), B, S, reach, S2, D2, SCORES)
    nothing = tl.zeros([ROWS, D // 4], tl.int32)
    sums = (nothing, nothing, nothing, nothing)
    totals = tl.zeros([ROWS], tl.int32)
    for j in tl.static_range(BLOCKS):
        if j + AHEAD < BLOCKS:
            more = block_of_words(k_ptr, v_ptr, j + AHEAD + BLOCKS, k2, v2, left[:, None], ALL, ROWS, BLOCKS)
            loaded = loaded + (more,)
        scores = scores_of_pairs(words[j], line, S, S2, f, SCORES, HOPPER)
        if not ALL:
            scores = scores & ones_before(left, j, ROWS)
        totals = with_both_halves(totals, scores, HOPPER)
        sums = with_products(sums, scores[:, None], loaded[BLOCKS + j][0], loaded[BLOCKS + j][1], HOPPER)
    columns = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3]))
    N, Z = tl.sum(tl.reshape(columns, [ROWS, D]), axis=0), tl.sum(totals, axis=0)
    if OUT == PAIR:
        tl.store(sum_ptr + row, Z)
    result = output_of(
        N[None, :], tl.zeros([1], tl.int32) + Z, out_multiplier, out_shift, v_scale,
        out_ptr.dtype.element_ty, OUT, True, HOPPER,
    )  # fmt: skip
    tl.store(out_ptr + row.to(tl.int64) * D + tl.arange(0, D)[None, :], result)
