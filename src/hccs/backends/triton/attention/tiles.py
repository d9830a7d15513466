"""Attention in tiles of queries and keys, never an n x n matrix: a program keeps a block of queries.

Keys that a program can keep, as words of two logits, meet q once. Blocks of more keys pass through it two
times: the first pass finds the maximum alone, for the factor is positive, so that the largest accumulator
gives the largest logit.
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
    sum_of_pairs,
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
from hccs.backends.triton.codes import DEFERRED, LENGTHS, MASK, U8_DIV


@triton.jit
def block_of_queries(
    q_ptr, k_ptr, keys, values, parameters, valid_ptr, fault_ptr, out_ptr, sum_ptr, g, first, written,
    q2, k2, nq, nk, d, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, LAST: tl.constexpr, FULL: tl.constexpr,
    MODE: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr, SUMS: tl.constexpr, HIGH: tl.constexpr,
    LONG: tl.constexpr, IS_WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One block of queries, from memory to memory, on the first TILES blocks of keys.

    LAST says that all queries see all of these blocks but the last in full.
    """
    B, S, D, S2, D2, f, multiplier, shift, out_multiplier, out_shift, v_scale = parameters
    query = first + tl.arange(0, ROWS)
    q = rows_of(q_ptr, query, tl.arange(0, BLOCK_D), q2, nq, d, FULL)
    limit = limits_of(valid_ptr, fault_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    words, seen = (), ()
    largest = tl.zeros([ROWS], tl.int32)
    for j in tl.static_range(TILES):
        key = j * KEYS + tl.arange(0, KEYS)
        acc = products(q, keys[j], q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        pairs = logits_of_pairs(acc, multiplier, shift, ROWS, KEYS, HOPPER)
        if not ALL:
            ones = 0
            if j == TILES - 1 or not LAST:
                ones = attended(
                    valid_ptr, limit, g, query, j * KEYS, nq, nk, n1, s0, s1, s2,
                    MASKING, CAUSAL, HOPPER, ROWS, KEYS,
                )  # fmt: skip
                pairs = pairs & ones
            seen = seen + (ones,)
        largest = tl.maximum(largest, maximum_of_pairs(pairs, HOPPER))
        words = words + (pairs,)
    line = distances(largest, B, S, D, S2, D2, SCORES)
    line = (line[0][:, None], line[1][:, None], line[2][:, None], line[3][:, None], line[4][:, None])
    sums = tl.zeros([ROWS, BLOCK_D], tl.int32 if LONG else tl.float32)
    Z = tl.zeros([ROWS], tl.int32)
    weights = ()
    for j in tl.static_range(TILES):
        pairs = scores_of_pairs(words[j], line, S, S2, f, SCORES, HOPPER)
        if not ALL and (j == TILES - 1 or not LAST):
            pairs = pairs & seen[j]
        Z += sum_of_pairs(pairs, SUMS)
        if MODE == DEFERRED:
            sums = times_values(pairs, values[j], sums, HIGH, LONG, ROWS, KEYS)
        else:
            weights = weights + (pairs,)
    if MODE != DEFERRED:
        for j in tl.static_range(TILES):
            pairs = probabilities_of_pairs(weights[j], Z, MODE - U8_DIV, IS_WIDE)
            sums = times_values(pairs, values[j], sums, HIGH, LONG, ROWS, KEYS)
        Z = tl.full([ROWS], 255, tl.int32)
    store_rows(
        out_ptr, sum_ptr, out_multiplier, out_shift, v_scale, g, query, written, sums, Z, nq, d,
        FULL, OUT, LONG, HOPPER,
    )  # fmt: skip


@triton.jit
def blocks_within(
    valid_ptr, g, first, reach, nq, nk, n1, s0, s1, REPEAT: tl.constexpr, MASKING: tl.constexpr,
    CAUSAL: tl.constexpr, ONE_LENGTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """How many of a program's blocks of queries see no key from `reach` on."""
    within = 0
    if CAUSAL:
        within = tl.minimum(tl.maximum((reach - (nk - nq) - first) // ROWS, 0), REPEAT)
        # The division rounds towards zero.
        within = tl.where(reach - (nk - nq) - first < 0, 0, within)
    if MASKING == LENGTHS and ONE_LENGTH:
        length = tl.load(valid_ptr + (g // n1).to(tl.int64) * s0 + (g % n1).to(tl.int64) * s1)
        within = tl.where(length <= reach, REPEAT, within)
    return within


@triton.jit(do_not_specialize=["nk"])
def attention_in_one_pass(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nk, nq, d, heads, sharing, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, LAST: tl.constexpr, FULL: tl.constexpr,
    MODE: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr, SUMS: tl.constexpr, HIGH: tl.constexpr,
    LONG: tl.constexpr, IS_WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr, REPEAT: tl.constexpr,
    SHARED: tl.constexpr, ONE_LENGTH: tl.constexpr, STEPWISE: tl.constexpr,
):  # fmt: skip
    """A program keeps TILES * KEYS keys, which it reads once for REPEAT blocks of queries.

    A program stays with one head. Its parameters are read once where all batches share them (SHARED).
    STEPWISE takes the queries that see one block of keys first, then those that see two, and so on.
    """
    column = tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    h = tl.program_id(0) % heads
    table_ptr += h * t1
    q_ptr += h.to(tl.int64) * q1
    k_ptr += (h // sharing).to(tl.int64) * k1
    v_ptr += (h // sharing).to(tl.int64) * v1
    parameters = parameters_of(table_ptr, SCORES)
    for task in tl.range(tl.program_id(0) // heads, tasks, tl.num_programs(0) // heads):
        batch = (task // blocks).to(tl.int64)
        first = (task % blocks) * (REPEAT * ROWS)
        q_head, k_head, v_head = q_ptr + batch * q0, k_ptr + batch * k0, v_ptr + batch * v0
        if not SHARED:
            parameters = parameters_of(table_ptr + batch * t0, SCORES)
        keys, values = (), ()
        for j in tl.static_range(TILES):
            key = j * KEYS + tl.arange(0, KEYS)
            keys = keys + (rows_of(k_head, key, column, k2, nk, d, FULL),)
            values = values + (as_halves(rows_of(v_head, key, written, v2, nk, d, FULL), HOPPER),)
        g = (task // blocks) * heads + h
        done = 0
        for T in tl.static_range(1 if STEPWISE else TILES, TILES + 1):
            stop = REPEAT
            if T < TILES:
                stop = blocks_within(
                    valid_ptr, g, first, T * KEYS, nq, nk, n1, s0, s1,
                    REPEAT, MASKING, CAUSAL, ONE_LENGTH, ROWS,
                )  # fmt: skip
            for i in tl.range(done, stop):
                block_of_queries(
                    q_head, k_head, keys, values, parameters, valid_ptr, fault_ptr, out_ptr, sum_ptr, g,
                    first + i * ROWS, written, q2, k2, nq, nk, d, n1, s0, s1, s2, MASKING, CAUSAL,
                    ALL, LAST, FULL, MODE, OUT, SCORES, SUMS, HIGH, LONG, IS_WIDE, HOPPER, CHUNKS,
                    BLOCK_D, ROWS, KEYS, T,
                )  # fmt: skip
            done = stop


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

    # Scores above 2047 take two products, which are added in int32 at once.
    IS_LONG: tl.constexpr = LONG and HIGH
    sums = tl.zeros([ROWS, BLOCK_D], tl.int32 if IS_LONG else tl.float32)
    for MASKED in tl.static_range(1 if ALL else 2):
        sums, parts = with_blocks(
            unmasked if MASKED else 0, stop if MASKED else unmasked, sums, parts, q, q_ptr, k_ptr,
            v_ptr, valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query, written, q2, k2, v2, nq, nk,
            d, n1, s0, s1, s2, Z, MASKED, FULL, MASKING, CAUSAL, MODE, SCORES, SUMS, HIGH, IS_LONG, IS_WIDE,
            HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
        )  # fmt: skip
    if MODE != DEFERRED:
        Z = tl.full([ROWS], 255, tl.int32)
    else:
        Z = total_of_parts(parts, SUMS)
    if LONG and not HIGH:
        # Sums of scores up to 2^17 keep those of scores times v within 2^24, which float32 adds exactly. Rows
        # with larger ones, which are rare, pass once more: there FLUSH blocks are added in float32, more in
        # int32.
        N = in_steps(sums)
        if tl.max(Z, axis=0) > 131072:
            N = tl.zeros([ROWS, BLOCK_D], tl.int32)
            for MASKED in tl.static_range(1 if ALL else 2):
                begin, end = unmasked if MASKED else 0, stop if MASKED else unmasked
                for chunk in tl.range(begin, end, FLUSH * KEYS):
                    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
                    sums, parts = with_blocks(
                        chunk, tl.minimum(chunk + FLUSH * KEYS, end), sums, parts, q, q_ptr, k_ptr, v_ptr,
                        valid_ptr, limit, line, S, S2, f, multiplier, shift, g, query, written, q2, k2, v2,
                        nq, nk, d, n1, s0, s1, s2, Z, MASKED, FULL, MASKING, CAUSAL, MODE, SCORES, SUMS, HIGH,
                        False, IS_WIDE, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
                    )  # fmt: skip
                    N += in_steps(sums)
        sums = N
    store_rows(
        out_ptr, sum_ptr, out_multiplier, out_shift, v_scale, g, query, written, sums, Z, nq, d,
        FULL, OUT, LONG, HOPPER,
    )  # fmt: skip
