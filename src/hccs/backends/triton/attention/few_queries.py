"""Up to 16 queries on many keys, as in a step of generation.

The keys are split over programs, and all queries of the heads that share keys are the rows of one tile, so
that k and v are read once. A score needs the maximum of its row, so there are two kernels: the first computes
logits, which it leaves in memory (a thirtieth of what k takes), and maxima; the second computes sums from
them and v. The sums are integers: programs add theirs in any order, and the last one to finish divides.

One query needs one launch where there are heads enough for the GPU, a program for each. A tile of the tensor
cores would be wasted on one row, and its detour through shared memory takes the time. So k goes from memory
to products of four bytes, and v to sums of bytes, in registers. The logits of the row stay there, two to a
word, and only the output is written. Loads run ahead of the arithmetic, those of v start before the row's
maximum is known, so that memory is never idle. Keys i and i + ROWS of a block make a word: their bytes of v
meet in one product of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import (
    as_halves,
    distances,
    in_steps,
    larger_of_pairs,
    larger_of_plain_pairs,
    logits_of_pairs,
    maximum_of_pairs,
    ones_below,
    scores_of_pairs,
    times_values,
    word_of_logits,
)
from hccs.backends.triton.attention.steps import limits_of, output_of, parameters_of, products, rows_of
from hccs.backends.triton.codes import PAIR
from hccs.backends.triton.devices import INTERPRETED

ROWS = 16
"""Most queries times heads that share keys."""


@triton.jit
def rows_of_task(task, kv_heads, sharing, nq, ROWS: tl.constexpr):
    """Batch and key head of a program, and of each row: its query, its head, and whether there is one."""
    row = tl.arange(0, ROWS)
    batch, kv_head = task // kv_heads, task % kv_heads
    live = row < sharing * nq
    return (
        batch,
        kv_head,
        tl.where(live, row % nq, nq),
        kv_head * sharing + tl.where(live, row // nq, 0),
        live,
    )


@triton.jit(do_not_specialize=["nk"])
def logits_of_split(
    q_ptr, k_ptr, table_ptr, valid_ptr, fault_ptr, scratch_ptr,
    nk, nq, d, kv_heads, sharing, splits, width, sums_at, maxima_at, totals_at, counts_at,
    q0, q1, q2, k0, k1, k2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, HOPPER: tl.constexpr,
    BLOCK_D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Words of two logits [task, row, width], and the maximum of each split; makes room for the sums."""
    task, split = tl.program_id(0), tl.program_id(1)
    batch, kv_head, query, head, live = rows_of_task(task, kv_heads, sharing, nq, ROWS)
    column = tl.arange(0, BLOCK_D)
    batch64, head64 = batch.to(tl.int64), head.to(tl.int64)
    parameters = parameters_of(table_ptr + batch64 * t0 + head64 * t1, 0)
    multiplier, shift = parameters[6][:, None], parameters[7][:, None]
    place = q_ptr + batch64 * q0 + (head64 * q1 + query * q2)[:, None] + column[None, :]
    q = tl.load(place, mask=live[:, None] & (column < d)[None, :], other=0)
    k_ptr += batch64 * k0 + kv_head.to(tl.int64) * k1
    g = batch * (kv_heads * sharing) + head
    limit = limits_of(valid_ptr, fault_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    first = split * SPLIT
    row = tl.arange(0, ROWS)
    words = scratch_ptr + ((task * sharing * nq).to(tl.int64) + row) * width
    pair = tl.arange(0, KEYS // 2)
    peaks = tl.zeros([ROWS, KEYS // 2], tl.int32)
    for start in tl.range(first, tl.minimum(first + SPLIT, nk), KEYS):
        key = start + tl.arange(0, KEYS)
        k = rows_of(k_ptr, key, column, k2, nk, d, False)
        acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, 1, BLOCK_D)
        pairs = logits_of_pairs(acc, multiplier, shift, ROWS, KEYS, HOPPER)
        pairs = pairs & ones_below(limit, start, ROWS, KEYS, HOPPER)
        peaks = larger_of_pairs(peaks, pairs) if HOPPER else larger_of_plain_pairs(peaks, pairs)
        tl.store(words[:, None] + (start // 2 + pair)[None, :], pairs, mask=live[:, None])
    own = task * sharing * nq + row
    tl.store(scratch_ptr + maxima_at + own * splits + split, maximum_of_pairs(peaks, HOPPER), mask=live)
    if split == 0:
        inside = live[:, None] & (column < d)[None, :]
        nothing = tl.zeros([ROWS, BLOCK_D], tl.int32)
        tl.store(scratch_ptr + sums_at + own[:, None] * d + column[None, :], nothing, mask=inside)
        tl.store(scratch_ptr + totals_at + own, tl.zeros([ROWS], tl.int32), mask=live)
        tl.store(scratch_ptr + counts_at + task, 0)


@triton.jit(do_not_specialize=["nk"])
def sums_of_split(
    v_ptr, table_ptr, valid_ptr, fault_ptr, scratch_ptr, out_ptr, sum_ptr,
    nk, nq, d, kv_heads, sharing, splits, width, sums_at, maxima_at, totals_at, counts_at,
    v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr,
    HIGH: tl.constexpr, LONG: tl.constexpr, HOPPER: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Scores and their product with v, added to those of the other splits; the last program divides."""
    task, split = tl.program_id(0), tl.program_id(1)
    batch, kv_head, query, head, live = rows_of_task(task, kv_heads, sharing, nq, ROWS)
    column = tl.arange(0, BLOCK_D)
    B, S, D, S2, D2, f, _, _, out_multiplier, out_shift, v_scale = parameters_of(
        table_ptr + batch.to(tl.int64) * t0 + head.to(tl.int64) * t1, SCORES
    )
    own = task * sharing * nq + tl.arange(0, ROWS)
    other = tl.arange(0, SPLITS)
    found = tl.load(
        scratch_ptr + maxima_at + own[:, None] * splits + other[None, :],
        mask=live[:, None] & (other < splits)[None, :], other=0,
    )  # fmt: skip
    line = distances(tl.max(found, axis=1), B, S, D, S2, D2, SCORES)
    line = (line[0][:, None], line[1][:, None], line[2][:, None], line[3][:, None], line[4][:, None])
    g = batch * (kv_heads * sharing) + head
    limit = limits_of(valid_ptr, fault_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    v_ptr += batch.to(tl.int64) * v0 + kv_head.to(tl.int64) * v1
    words = scratch_ptr + own.to(tl.int64) * width
    pair = tl.arange(0, KEYS // 2)
    first = split * SPLIT
    sums = tl.zeros([ROWS, BLOCK_D], tl.int32 if LONG else tl.float32)
    totals = tl.zeros([ROWS, KEYS // 2], tl.int32)
    for start in tl.range(first, tl.minimum(first + SPLIT, nk), KEYS):
        v = as_halves(rows_of(v_ptr, start + tl.arange(0, KEYS), column, v2, nk, d, False), HOPPER)
        pairs = tl.load(words[:, None] + (start // 2 + pair)[None, :], mask=live[:, None], other=0)
        scores = scores_of_pairs(pairs, line, S[:, None], S2[:, None], f[:, None], SCORES, HOPPER)
        scores = scores & ones_below(limit, start, ROWS, KEYS, HOPPER)
        totals += (scores & 0xFFFF) + ((scores >> 16) & 0xFFFF)
        sums = times_values(scores, v, sums, HIGH, LONG, ROWS, KEYS)
    N, Z = sums if LONG else in_steps(sums), tl.sum(totals, axis=1)
    inside = live[:, None] & (column < d)[None, :]
    places = own[:, None] * d + column[None, :]
    last = True
    sums_ptr, totals_ptr = scratch_ptr + sums_at, scratch_ptr + totals_at
    if SPLITS > 1:
        tl.atomic_add(sums_ptr + places, N, mask=inside, sem="relaxed")
        tl.atomic_add(totals_ptr + own, Z, mask=live, sem="relaxed")
        tl.debug_barrier()  # all sums of the program are added before it counts itself
        last = tl.atomic_add(scratch_ptr + counts_at + task, 1, sem="acq_rel") == splits - 1
    if last:
        if SPLITS > 1:
            tl.debug_barrier()
            N = tl.load(sums_ptr + places, mask=inside, other=0, cache_modifier=".cg")
            Z = tl.load(totals_ptr + own, mask=live, other=0, cache_modifier=".cg")
        if OUT == PAIR:
            tl.store(sum_ptr + own, Z, mask=live)
        result = output_of(
            N, Z, out_multiplier, out_shift, v_scale[:, None], out_ptr.dtype.element_ty, OUT, True, HOPPER
        )
        tl.store(out_ptr + places, result, mask=inside)


# Triton's interpreter knows no machine instructions.
SPELLED_OUT = tl.constexpr(INTERPRETED)

# A byte, and its sign in all bytes above.
_BYTES = tl.constexpr(
    ("prmt.b32 $0, $1, 0, 0x8880;", "prmt.b32 $0, $1, 0, 0x9991;", "prmt.b32 $0, $1, 0, 0xAAA2;")
)


@triton.jit
def byte_of(words, NUMBER: tl.constexpr, HOPPER: tl.constexpr):
    """The signed byte of a word, as int32."""
    if HOPPER and not SPELLED_OUT and NUMBER < 3:
        CODE: tl.constexpr = _BYTES[NUMBER]
        byte = tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1)
    else:
        byte = (words << (24 - 8 * NUMBER)) >> 24
    return byte


@triton.jit
def four_products(a, b, HOPPER: tl.constexpr):
    """The sum of the products of four signed bytes."""
    if HOPPER and not SPELLED_OUT:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total = byte_of(a, 0, False) * byte_of(b, 0, False) + byte_of(a, 1, False) * byte_of(b, 1, False)
        total += byte_of(a, 2, False) * byte_of(b, 2, False) + byte_of(a, 3, False) * byte_of(b, 3, False)
    return total


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
def half_block(ptr, number, stride, left, HALF: tl.constexpr, ROWS: tl.constexpr):
    """Half of a block of 2 * ROWS rows; rows from `left` on hold anything."""
    first = 2 * ROWS * number + HALF * ROWS
    return tl.load(ptr + first * stride, mask=left > first)


@triton.jit
def block_of_words(k_ptr, v_ptr, number, k2, v2, left, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Both halves of a block; block BLOCKS is the first of v."""
    if number < BLOCKS:
        lower = half_block(k_ptr, number, k2, left, 0, ROWS)
        upper = half_block(k_ptr, number, k2, left, 1, ROWS)
    else:
        lower = half_block(v_ptr, number - BLOCKS, v2, left, 0, ROWS)
        upper = half_block(v_ptr, number - BLOCKS, v2, left, 1, ROWS)
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
def attention_of_one_query(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nk, heads, q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr,
    HOPPER: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, AHEAD: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """The row of one head, loads AHEAD blocks in front; strides of q, k and v count words.

    DENSE says that rows of k and v follow one another, so that their places are known at compile time.
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
        loaded = loaded + (block_of_words(k_ptr, v_ptr, j, k2, v2, left[:, None], ROWS, BLOCKS),)
    parameters = parameters_of(table_ptr + batch * t0 + head * t1, SCORES)
    B, S, reach, S2, D2, f, multiplier, shift, out_multiplier, out_shift, v_scale = parameters
    q = tl.load(q_ptr + batch * q0 + head * q1 + column)[None, :]
    words = ()
    peaks = tl.zeros([ROWS], tl.int32)
    for j in tl.static_range(BLOCKS):
        if j + AHEAD < 2 * BLOCKS:
            more = block_of_words(k_ptr, v_ptr, j + AHEAD, k2, v2, left[:, None], ROWS, BLOCKS)
            loaded = loaded + (more,)
        even = tl.sum(four_products(loaded[j][0], q, HOPPER), axis=1)
        odd = tl.sum(four_products(loaded[j][1], q, HOPPER), axis=1)
        pairs = word_of_logits(even, odd, multiplier, shift, HOPPER)
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
            more = block_of_words(k_ptr, v_ptr, j + AHEAD + BLOCKS, k2, v2, left[:, None], ROWS, BLOCKS)
            loaded = loaded + (more,)
        scores = scores_of_pairs(words[j], line, S, S2, f, SCORES, HOPPER)
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
