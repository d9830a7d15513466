"""Attention on more keys than a program can keep: blocks of keys pass through it two times.

The first pass finds the maximum alone: the factor is positive, so the largest accumulator gives the largest
logit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import (
    LOWEST,
    ZERO,
    as_halves,
    beside_pairs,
    distances,
    in_steps,
    larger_of_pairs,
    larger_of_plain_pairs,
    logits_of_pairs,
    maxima,
    maxima_of_pairs,
    maximum_of_pairs,
    probabilities_of_pairs,
    round_half_up,
    scores_of_pairs,
    sums_of_pairs,
    times_values,
    total_of_parts,
)
from hccs.backends.triton.attention.steps import (
    attended,
    limits_of,
    parameters_of,
    products,
    rows_of,
    store_rows,
)
from hccs.backends.triton.codes import DEFERRED, MASK, U8_DIV


@triton.jit
def scores_of_block(
    q, q_ptr, k_ptr, valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query, start, q2, k2,
    nq, nk, d, n1, s0, s1, s2,
    MASKED: tl.constexpr, FULL: tl.constexpr, MASKING: tl.constexpr, CAUSAL: tl.constexpr,
    SCORES: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The scores of queries on the block of keys at `start`; their logits where `line` is None."""
    key = start + tl.arange(0, KEYS)
    k = rows_of(k_ptr, key, tl.arange(0, BLOCK_D), k2, nk, d, FULL)
    acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
    pairs = logits_of_pairs(acc, multiplier, shift, ROWS, KEYS, HOPPER)
    if line is not None:
        pairs = scores_of_pairs(pairs, line, S, S2, f, SCORES, HOPPER)
    if MASKED:
        pairs = pairs & attended(
            valid_ptr, limit, g, query, start, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL, HOPPER, ROWS, KEYS
        )
    return pairs


@triton.jit
def with_blocks(
    begin, end, sums, parts, q, q_ptr, k_ptr, v_ptr, valid_ptr, limit, line, S, S2, f, multiplier, shift, g,
    query, written, q2, k2, v2, nq, nk, d, n1, s0, s1, s2, Z,
    MASKED: tl.constexpr, FULL: tl.constexpr, MASKING: tl.constexpr, CAUSAL: tl.constexpr, MODE: tl.constexpr,
    SCORES: tl.constexpr, SUMS: tl.constexpr, HIGH: tl.constexpr, IS_LONG: tl.constexpr,
    IS_WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The second pass over keys `begin` to `end`, added to the product with v and to the sums of scores."""
    for start in tl.range(begin, end, KEYS):
        v = as_halves(rows_of(v_ptr, start + tl.arange(0, KEYS), written, v2, nk, d, FULL), HOPPER)
        pairs = scores_of_block(
            q, q_ptr, k_ptr, valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query,
            start, q2, k2, nq, nk, d, n1, s0, s1, s2,
            MASKED, FULL, MASKING, CAUSAL, SCORES, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
        )  # fmt: skip
        if MODE != DEFERRED:
            pairs = probabilities_of_pairs(pairs, Z, MODE - U8_DIV, IS_WIDE)
        else:
            parts += sums_of_pairs(pairs, SUMS, ROWS, KEYS)
        sums = times_values(pairs, v, sums, HIGH, IS_LONG, ROWS, KEYS)
    return sums, parts


@triton.jit(do_not_specialize=["nk"])
def attention_in_two_passes(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nk, nq, d, heads, sharing, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, SCORES: tl.constexpr, SUMS: tl.constexpr, HIGH: tl.constexpr, LONG: tl.constexpr,
    IS_WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """Two passes over blocks of keys: the maximum, then scores and product; probabilities need one more.

    Each pass takes first the blocks that all its queries see in full, then those that need masking. Causal
    programs start with the last queries, which take longest.
    """
    g = tl.program_id(0) // blocks
    batch, h = (g // heads).to(tl.int64), (g % heads).to(tl.int64)
    B, S, D, S2, D2, f, multiplier, shift, out_multiplier, out_shift, v_scale = parameters_of(
        table_ptr + batch * t0 + h * t1, SCORES
    )
    q_ptr += batch * q0 + h * q1
    k_ptr += batch * k0 + (h // sharing) * k1
    v_ptr += batch * v0 + (h // sharing) * v1
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    query, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    q = rows_of(q_ptr, query, column, q2, nq, d, FULL)
    limit = limits_of(valid_ptr, fault_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    unmasked, stop = nk, nk
    if not ALL:
        stop = tl.max(tl.where(query < nq, limit, 0), axis=0)
        unmasked = tl.min(tl.where(query < nq, limit, nk), axis=0) // KEYS * KEYS
    if MASKING >= MASK:
        unmasked = 0

    maximum = tl.full([ROWS, 8], LOWEST, tl.int32)
    for start in tl.range(0, unmasked, KEYS):
        key = start + tl.arange(0, KEYS)
        k = rows_of(k_ptr, key, column, k2, nk, d, FULL)
        acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        maximum = tl.maximum(maximum, maxima(acc, ROWS, KEYS))
    largest = round_half_up(tl.max(maximum, axis=1).to(tl.float32), multiplier, shift, HOPPER) + ZERO
    if not ALL:
        peaks = tl.zeros([ROWS, 4], tl.int32)
        for start in tl.range(unmasked, stop, KEYS):
            pairs = scores_of_block(
                q, q_ptr, k_ptr, valid_ptr, limit, None, S, S2, f, multiplier, shift, g, query,
                start, q2, k2, nq, nk, d, n1, s0, s1, s2,
                True, FULL, MASKING, CAUSAL, SCORES, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
            found = maxima_of_pairs(pairs, ROWS, KEYS, HOPPER)
            peaks = larger_of_pairs(peaks, found) if HOPPER else larger_of_plain_pairs(peaks, found)
        largest = tl.maximum(largest, maximum_of_pairs(peaks, HOPPER))
    line = distances(largest, B, S, D, S2, D2, SCORES)
    line = (
        beside_pairs(line[0], ROWS, KEYS), beside_pairs(line[1], ROWS, KEYS),
        beside_pairs(line[2], ROWS, KEYS), beside_pairs(line[3], ROWS, KEYS),
        beside_pairs(line[4], ROWS, KEYS),
    )  # fmt: skip

    parts = tl.zeros([ROWS, 4], tl.int32)
    if MODE != DEFERRED:
        for start in tl.range(0, stop, KEYS):
            pairs = scores_of_block(
                q, q_ptr, k_ptr, valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query,
                start, q2, k2, nq, nk, d, n1, s0, s1, s2,
                not ALL, FULL, MASKING, CAUSAL, SCORES, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
            parts += sums_of_pairs(pairs, SUMS, ROWS, KEYS)
    Z = total_of_parts(parts, SUMS)

    # The sums of FLUSH blocks are exact in float32, those of more in int32. Scores above 2047 take two
    # products, which are added in int32 at once.
    IS_LONG: tl.constexpr = LONG and HIGH
    BY_CHUNK: tl.constexpr = LONG and not HIGH
    sums = tl.zeros([ROWS, BLOCK_D], tl.int32 if IS_LONG else tl.float32)
    N = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for MASKED in tl.static_range(1 if ALL else 2):
        begin, end = unmasked if MASKED else 0, stop if MASKED else unmasked
        if BY_CHUNK:
            for chunk in tl.range(begin, end, FLUSH * KEYS):
                sums, parts = with_blocks(
                    chunk, tl.minimum(chunk + FLUSH * KEYS, end), sums, parts, q, q_ptr, k_ptr, v_ptr,
                    valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query, written, q2, k2, v2,
                    nq, nk, d, n1, s0, s1, s2, Z, MASKED, FULL, MASKING, CAUSAL, MODE, SCORES, SUMS, HIGH,
                    IS_LONG, IS_WIDE, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
                )  # fmt: skip
                N += in_steps(sums)
                sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
        else:
            sums, parts = with_blocks(
                begin, end, sums, parts, q, q_ptr, k_ptr, v_ptr, valid_ptr, limit, line, S, S2, f,
                multiplier, shift, g, query, written, q2, k2, v2, nq, nk, d, n1, s0, s1, s2, Z,
                MASKED, FULL, MASKING, CAUSAL, MODE, SCORES, SUMS, HIGH, IS_LONG, IS_WIDE, HOPPER, CHUNKS,
                BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
    if BY_CHUNK:
        sums = N
    if MODE != DEFERRED:
        Z = tl.full([ROWS], 255, tl.int32)
    else:
        Z = total_of_parts(parts, SUMS)
    store_rows(
        out_ptr, sum_ptr, out_multiplier, out_shift, v_scale, g, query, written, sums, Z, nq, d,
        FULL, OUT, LONG, HOPPER,
    )  # fmt: skip
