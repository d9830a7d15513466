"""Attention of heads of 256 or 512 keys on Hopper, whose k and v stay in shared memory.

These are the kernels of `tiles.py` in Gluon, where products run beside the scores of other keys. v's
columns are stored in such an order that a thread's sums belong to neighbouring columns, so that it writes its
part of the output without an exchange.

Without a mask a program keeps the logits of a block of queries in registers. A causal program multiplies the
keys before its block two times, for the maximum and for the scores: their logits take no registers, so that
twice as many warps find room. It multiplies the keys of the block itself once, and reads each block's keys
alone. A thread reads its part of the operand q a block ahead: no block waits for all warps of its program.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from hccs.backends.triton.attention.gluon_steps import (
    as_operand,
    barrier,
    begin_async_copy,
    bytes_of_words,
    distances,
    logit_of_largest,
    logits_of_pairs,
    maxima_of_products,
    ones_below,
    parameters_of,
    plus,
    reciprocal_of,
    reinterpreted,
    reordered,
    scores_of_pairs,
    write_block,
)
from hccs.backends.triton.attention.packed_logits import (
    LOWEST,
    as_halves,
    larger_of_pairs,
    maxima_of_pairs,
    maximum_of_pairs,
    sums_of_pairs,
    total_of_parts,
)
from hccs.backends.triton.codes import PACKED


@gluon.jit
def begin_products(q, keys, ROWS: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """q.k of a block of keys, into registers of their own: see `gluon_steps.py`."""
    acc = gl.zeros([ROWS, KEYS], gl.int32, LAYOUT)
    return warpgroup_mma(q, keys.permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def begin_keys_and_values(
    k_ptr, v_ptr, batch, head, k0, k1, k2, v0, v1, v2, TILES: gl.constexpr, KEYS: gl.constexpr,
    BLOCK_D: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Room for blocks of k and of v; begins the copy of k, and loads v, which is still to be converted."""
    N: gl.constexpr = TILES * KEYS
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [WARPS, 1], [1, 0])
    OF_KEYS: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    OF_VALUES: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    row = gl.arange(0, N, gl.SliceLayout(1, ROW))[:, None]
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))[None, :]
    keys = gl.allocate_shared_memory(gl.int8, [TILES, KEYS, BLOCK_D], OF_KEYS)
    values = gl.allocate_shared_memory(gl.float16, [TILES, KEYS, BLOCK_D], OF_VALUES)
    all_keys = reinterpreted(keys, gl.int8, [N, BLOCK_D], OF_KEYS)
    begin_async_copy(all_keys, k_ptr + (batch * k0 + head * k1) + (row * k2 + column))
    return keys, values, gl.load(v_ptr + (batch * v0 + head * v1) + (row * v2 + column))


@gluon.jit
def finish_keys_and_values(values, found, TILES: gl.constexpr, KEYS: gl.constexpr, BLOCK_D: gl.constexpr):
    """Store v as float16, and wait for what is being copied."""
    N: gl.constexpr = TILES * KEYS
    all_values = reinterpreted(
        values, gl.float16, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    )  # fmt: skip
    all_values.store(reordered(as_halves(found, True), N))
    async_copy.wait_group(0)
    barrier()
    fence_async_shared()


@gluon.jit
def attend(
    q, keys, values, parameters, out_ptr, first, TILES: gl.constexpr, SCORES: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """One block of queries on all keys, written from place `first` on."""
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    B, S, D, S2, D2, factor, v_scale = parameters
    acc = begin_products(q, keys.index(0), ROWS, KEYS, PRODUCTS)
    words = ()
    for j in gl.static_range(TILES):
        now = acc
        if j + 1 < TILES:
            acc = begin_products(q, keys.index(j + 1), ROWS, KEYS, PRODUCTS)
            now = warpgroup_mma_wait(1, deps=[now])
        else:
            now = warpgroup_mma_wait(0, deps=[now])
        pairs = logits_of_pairs(now, factor, ROWS, KEYS)
        words = words + (pairs,)
        if j == 0:
            parts = maxima_of_pairs(pairs, ROWS, KEYS, True)
        else:
            parts = larger_of_pairs(parts, maxima_of_pairs(pairs, ROWS, KEYS, True))
    line = distances(maximum_of_pairs(parts, True), B, S, D, S2, D2, SCORES, ROWS, KEYS, PRODUCTS)
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    for j in gl.static_range(TILES):
        pairs = scores_of_pairs(words[j], line, SCORES)
        if j == 0:
            parts = sums_of_pairs(pairs, PACKED, ROWS, KEYS)
        else:
            parts += sums_of_pairs(pairs, PACKED, ROWS, KEYS)
        weights = as_operand(pairs, ROWS, KEYS, OPERAND)
        sums = warpgroup_mma(weights, values.index(j), sums, is_async=True)
    Z = gl.convert_layout(total_of_parts(parts, PACKED), gl.SliceLayout(1, SUM))
    reciprocal = reciprocal_of(Z, ROWS, BLOCK_D, SUM)
    sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    write_block(sums, reciprocal, v_scale, out_ptr, first, ROWS, BLOCK_D, [[16, 0], [32, 0]])


@gluon.jit
def attend_head(
    g, ahead, q_words, queries, keys, values, found, q_place, table_ptr, out_ptr, heads, q0, q1, q2, t0, t1,
    TILES: gl.constexpr, SCORES: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    BLOCK_D: gl.constexpr, QUERIES: gl.constexpr,
):  # fmt: skip
    """All blocks of queries of head `g`; `ahead` is the first where they are read a block ahead."""
    N: gl.constexpr = TILES * KEYS
    BLOCKS: gl.constexpr = N // ROWS
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    parameters = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
    finish_keys_and_values(values, found, TILES, KEYS, BLOCK_D)
    for i in range(BLOCKS):
        if QUERIES == N:
            q = queries.index(i)
        else:
            q_words.store(ahead)
            fence_async_shared()
            barrier()
            following = gl.minimum(i + 1, BLOCKS - 1) * ROWS
            ahead = gl.load(q_place + (batch * q0 + h * q1) + following * q2)
            q = queries.index(0)
        first = gl.cast(g, gl.int64) * (N * BLOCK_D) + i * (ROWS * BLOCK_D)
        attend(q, keys, values, parameters, out_ptr, first, TILES, SCORES, ROWS, KEYS, BLOCK_D)


@gluon.jit
def attention_of_all_keys(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, nk, heads, sharing,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    SCORES: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, TILES: gl.constexpr,
    QUERIES: gl.constexpr,
):  # fmt: skip
    """One head of TILES * KEYS queries and as many keys, of 64 columns; q counts in words of four of them.

    QUERIES stay in shared memory: all of a head of 256 keys, so that no block of them waits for all warps,
    or one block, which is read a block ahead.
    """
    N: gl.constexpr = TILES * KEYS
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    query = gl.arange(0, QUERIES, gl.SliceLayout(1, WORDS))[:, None]
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))[None, :]
    q_words = gl.allocate_shared_memory(
        gl.int32, [QUERIES, BLOCK_D // 4], gl.NVMMASharedLayout(BLOCK_D, 32, 2)
    )  # fmt: skip
    queries = reinterpreted(
        q_words, gl.int8, [QUERIES // ROWS, ROWS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    )  # fmt: skip
    task = gl.program_id(0)
    # Divided in 32 bits, which is short.
    batch, h, shared = task // heads, task % heads, task % heads // sharing
    batch, h, shared = batch.to(gl.int64), h.to(gl.int64), shared.to(gl.int64)
    q_place = q_ptr + (query * q2 + word)
    keys, values, found = begin_keys_and_values(
        k_ptr, v_ptr, batch, shared, k0, k1, k2, v0, v1, v2, TILES, KEYS, BLOCK_D, 4
    )
    if QUERIES == N:
        begin_async_copy(q_words, q_place + (batch * q0 + h * q1))
        ahead = None
    else:
        ahead = gl.load(q_place + (batch * q0 + h * q1))
    async_copy.commit_group()
    if QUERIES == N:
        attend_head(
            task, ahead, q_words, queries, keys, values, found, q_place, table_ptr, out_ptr, heads,
            q0, q1, q2, t0, t1, TILES, SCORES, ROWS, KEYS, BLOCK_D, QUERIES,
        )  # fmt: skip
    else:  # as a loop, so that ptxas spills what serves the head alone and not what the loop inside needs
        for g in range(task, task + 1, gl.num_programs(0)):
            attend_head(
                g, ahead, q_words, queries, keys, values, found, q_place, table_ptr, out_ptr, heads,
                q0, q1, q2, t0, t1, TILES, SCORES, ROWS, KEYS, BLOCK_D, QUERIES,
            )  # fmt: skip


@gluon.jit
def largest_of_two(q, keys, block, parts, ROWS: gl.constexpr, KEYS: gl.constexpr, PRODUCTS: gl.constexpr):
    """The maxima of products, with those of two blocks of keys."""
    first = begin_products(q, keys.index(block), ROWS, KEYS, PRODUCTS)
    second = begin_products(q, keys.index(block + 1), ROWS, KEYS, PRODUCTS)
    first = warpgroup_mma_wait(1, deps=[first])
    parts = gl.maximum(parts, maxima_of_products(first, ROWS, KEYS))
    second = warpgroup_mma_wait(0, deps=[second])
    return gl.maximum(parts, maxima_of_products(second, ROWS, KEYS))


@gluon.jit
def with_two(
    q, keys, values, block, sums, parts, line, factor, SCORES: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, PRODUCTS: gl.constexpr, OPERAND: gl.constexpr,
):  # fmt: skip
    """The sums of scores times v, and of scores, with those of two blocks of keys."""
    first = begin_products(q, keys.index(block), ROWS, KEYS, PRODUCTS)
    second = begin_products(q, keys.index(block + 1), ROWS, KEYS, PRODUCTS)
    for j in gl.static_range(2):
        if j == 0:
            acc = warpgroup_mma_wait(1, deps=[first])
        else:  # the first's product with v may still be under way
            acc = warpgroup_mma_wait(1, deps=[second])
        pairs = scores_of_pairs(logits_of_pairs(acc, factor, ROWS, KEYS), line, SCORES)
        parts = plus(parts, sums_of_pairs(pairs, PACKED, ROWS, KEYS))
        weights = as_operand(pairs, ROWS, KEYS, OPERAND)
        sums = warpgroup_mma(weights, values.index(block + j), sums, is_async=True)
    sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    return warpgroup_mma_init(sums), parts


@gluon.jit
def attention_causal(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, nk, heads, sharing,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    SCORES: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """One head of TILES * KEYS queries and as many keys, of 64 columns; q counts in words of four of them.

    ROWS are 64 for four warps, 128 for eight.
    """
    N: gl.constexpr = TILES * KEYS
    BLOCKS: gl.constexpr = N // ROWS
    OWN: gl.constexpr = ROWS // KEYS
    WARPS: gl.constexpr = ROWS // 16
    ROWS_OF_WARPS: gl.constexpr = [[16, 0], [32, 0]] if WARPS == 4 else [[16, 0], [32, 0], [64, 0]]
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    # A thread's words of q are its part of the operand.
    WORDS: gl.constexpr = gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], ROWS_OF_WARPS, [], [ROWS, 16]
    )
    g = gl.program_id(0)
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    keys, values, found = begin_keys_and_values(
        k_ptr, v_ptr, batch, h // sharing, k0, k1, k2, v0, v1, v2, TILES, KEYS, BLOCK_D, WARPS
    )
    async_copy.commit_group()
    query = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))
    q_place = q_ptr + (batch * q0 + h * q1) + (query[:, None] * q2 + word[None, :])
    ahead = gl.load(q_place)
    B, S, D, S2, D2, factor, v_scale = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
    finish_keys_and_values(values, found, TILES, KEYS, BLOCK_D)
    # The compiler must not know these limits of a block's own keys: it would keep more than fits registers.
    limit = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [1 + gl.arange(0, ROWS, gl.SliceLayout(1, PRODUCTS))],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    for i in range(BLOCKS):
        q = gl.convert_layout(
            bytes_of_words(ahead, ROWS, BLOCK_D), gl.DotOperandLayout(0, PRODUCTS, 4), assert_trivial=True
        )
        ahead = gl.load(q_place + gl.minimum(i + 1, BLOCKS - 1) * ROWS * q2)
        before = i * OWN
        parts = maxima_of_products(gl.full([ROWS, KEYS], LOWEST, gl.int32, PRODUCTS), ROWS, KEYS)
        for t in range(before // 2):
            parts = largest_of_two(q, keys, 2 * t, parts, ROWS, KEYS, PRODUCTS)
        largest = logit_of_largest(gl.max(parts, axis=1), factor)
        words = ()
        now = begin_products(q, keys.index(before), ROWS, KEYS, PRODUCTS)
        for j in gl.static_range(OWN):
            acc = now
            if j + 1 < OWN:
                now = begin_products(q, keys.index(before + j + 1), ROWS, KEYS, PRODUCTS)
                acc = warpgroup_mma_wait(1, deps=[acc])
            else:
                acc = warpgroup_mma_wait(0, deps=[acc])
            pairs = logits_of_pairs(acc, factor, ROWS, KEYS)
            pairs = pairs & ones_below(limit, j * KEYS, ROWS, KEYS, PRODUCTS)
            words = words + (pairs,)
            if j == 0:
                parts = maxima_of_pairs(pairs, ROWS, KEYS, True)
            else:
                parts = larger_of_pairs(parts, maxima_of_pairs(pairs, ROWS, KEYS, True))
        own = gl.convert_layout(maximum_of_pairs(parts, True), gl.SliceLayout(1, PRODUCTS))
        largest = gl.maximum(gl.convert_layout(largest, gl.SliceLayout(1, PRODUCTS)), own)
        line = distances(largest, B, S, D, S2, D2, SCORES, ROWS, KEYS, PRODUCTS)
        sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
        for j in gl.static_range(OWN):
            pairs = scores_of_pairs(words[j], line, SCORES)
            pairs = pairs & ones_below(limit, j * KEYS, ROWS, KEYS, PRODUCTS)
            if j == 0:
                parts = sums_of_pairs(pairs, PACKED, ROWS, KEYS)
            else:
                parts += sums_of_pairs(pairs, PACKED, ROWS, KEYS)
            weights = as_operand(pairs, ROWS, KEYS, OPERAND)
            sums = warpgroup_mma(weights, values.index(before + j), sums, is_async=True)
        sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
        sums = warpgroup_mma_init(sums)
        for t in range(before // 2):
            sums, parts = with_two(
                q, keys, values, 2 * t, sums, parts, line, factor, SCORES, ROWS, KEYS, PRODUCTS, OPERAND
            )
        Z = gl.convert_layout(total_of_parts(parts, PACKED), gl.SliceLayout(1, SUM))
        reciprocal = reciprocal_of(Z, ROWS, BLOCK_D, SUM)
        sums = warpgroup_mma_wait(0, deps=[sums])
        first = g.to(gl.int64) * (N * BLOCK_D) + i * (ROWS * BLOCK_D)
        write_block(sums, reciprocal, v_scale, out_ptr, first, ROWS, BLOCK_D, ROWS_OF_WARPS)
