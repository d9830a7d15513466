"""Up to 16 queries on many keys, as in a step of generation: the keys are split over programs.

All queries of the heads that share keys are the rows of one tile, so that k and v are read once. A score
needs the maximum of its row, so there are two kernels: the first computes logits, which it leaves in memory
(a thirtieth of what k takes), and maxima; the second computes sums from them and v. The sums are integers:
programs add theirs in any order, and the last one to finish divides.
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
)
from hccs.backends.triton.attention.steps import limits_of, output_of, parameters_of, products, rows_of
from hccs.backends.triton.codes import PAIR

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
