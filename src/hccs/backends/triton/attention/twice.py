"""Causal attention of whole heads of 256 or 512 keys on Hopper: k and v stay in shared memory, little else.

The keys before a block of queries are multiplied twice, for the maximum and for the scores: their logits take
no registers, so that twice as many warps as in `held.py` find room. Those of the block itself are multiplied
once. The number of keys is a loop's, and every block sees exactly its own. A thread reads its part of the
operand q, a block ahead, and writes its part of the output: no block waits for all warps of its program.
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
    LOWEST,
    as_halves,
    as_operand,
    barrier,
    begin_async_copy,
    bytes_of_words,
    distances,
    larger_of_pairs,
    logit_of_largest,
    logits_of_pairs,
    maxima_of_pairs,
    maxima_of_products,
    maximum_of_parts,
    ones_below,
    parameters_of,
    plus,
    reciprocal_of,
    reinterpreted,
    reordered,
    scores_of_pairs,
    sums_of_pairs,
    total_of_parts,
    write_block,
)


@gluon.jit
def begin_products(q, keys, block, ROWS: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """q.k of a block of keys, into registers of their own: see `gluon_steps.py`."""
    acc = gl.zeros([ROWS, KEYS], gl.int32, LAYOUT)
    return warpgroup_mma(q, keys.index(block).permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def largest_of_two(q, keys, block, parts, ROWS: gl.constexpr, KEYS: gl.constexpr, PRODUCTS: gl.constexpr):
    """The maxima of products, with those of two blocks of keys."""
    first = begin_products(q, keys, block, ROWS, KEYS, PRODUCTS)
    second = begin_products(q, keys, block + 1, ROWS, KEYS, PRODUCTS)
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
    first = begin_products(q, keys, block, ROWS, KEYS, PRODUCTS)
    second = begin_products(q, keys, block + 1, ROWS, KEYS, PRODUCTS)
    for j in gl.static_range(2):
        if j == 0:
            acc = warpgroup_mma_wait(1, deps=[first])
        else:  # the first's product with v may still be under way
            acc = warpgroup_mma_wait(1, deps=[second])
        pairs = scores_of_pairs(logits_of_pairs(acc, factor, ROWS, KEYS), line, SCORES)
        parts = plus(parts, sums_of_pairs(pairs, ROWS, KEYS))
        weights = as_operand(pairs, ROWS, KEYS, OPERAND)
        sums = warpgroup_mma(weights, values.index(block + j), sums, is_async=True)
    sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    return warpgroup_mma_init(sums), parts


@gluon.jit
def attention_twice(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, heads, sharing,
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
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [WARPS, 1], [1, 0])
    # A thread's words of q are its part of the operand.
    WORDS: gl.constexpr = gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], ROWS_OF_WARPS, [], [ROWS, 16]
    )
    g = gl.program_id(0)
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    row = gl.arange(0, N, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    OF_KEYS: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    OF_VALUES: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    keys = gl.allocate_shared_memory(gl.int8, [TILES, KEYS, BLOCK_D], OF_KEYS)
    values = gl.allocate_shared_memory(gl.float16, [TILES, KEYS, BLOCK_D], OF_VALUES)
    k_ptr += batch * k0 + (h // sharing) * k1
    v_ptr += batch * v0 + (h // sharing) * v1
    all_keys = reinterpreted(keys, gl.int8, [N, BLOCK_D], OF_KEYS)
    begin_async_copy(all_keys, k_ptr + (row[:, None] * k2 + column[None, :]))
    async_copy.commit_group()
    query = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))
    q_place = q_ptr + (batch * q0 + h * q1) + (query[:, None] * q2 + word[None, :])
    ahead = gl.load(q_place)
    B, S, D, S2, D2, factor, v_scale = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
    halves = as_halves(gl.load(v_ptr + (row[:, None] * v2 + column[None, :])))
    reinterpreted(values, gl.float16, [N, BLOCK_D], OF_VALUES).store(reordered(halves, N))
    async_copy.wait_group(0)
    barrier()
    fence_async_shared()
    # Of a block's own keys; unknown to the compiler, which else keeps more than it has registers for.
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
        now = begin_products(q, keys, before, ROWS, KEYS, PRODUCTS)
        for j in gl.static_range(OWN):
            acc = now
            if j + 1 < OWN:
                now = begin_products(q, keys, before + j + 1, ROWS, KEYS, PRODUCTS)
                acc = warpgroup_mma_wait(1, deps=[acc])
            else:
                acc = warpgroup_mma_wait(0, deps=[acc])
            pairs = logits_of_pairs(acc, factor, ROWS, KEYS)
            pairs = pairs & ones_below(limit, j * KEYS, ROWS, KEYS, PRODUCTS)
            words = words + (pairs,)
            if j == 0:
                parts = maxima_of_pairs(pairs, ROWS, KEYS)
            else:
                parts = larger_of_pairs(parts, maxima_of_pairs(pairs, ROWS, KEYS))
        own = gl.convert_layout(maximum_of_parts(parts), gl.SliceLayout(1, PRODUCTS))
        largest = gl.maximum(gl.convert_layout(largest, gl.SliceLayout(1, PRODUCTS)), own)
        line = distances(largest, B, S, D, S2, D2, SCORES, ROWS, KEYS, PRODUCTS)
        sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
        for j in gl.static_range(OWN):
            pairs = scores_of_pairs(words[j], line, SCORES)
            pairs = pairs & ones_below(limit, j * KEYS, ROWS, KEYS, PRODUCTS)
            if j == 0:
                parts = sums_of_pairs(pairs, ROWS, KEYS)
            else:
                parts += sums_of_pairs(pairs, ROWS, KEYS)
            weights = as_operand(pairs, ROWS, KEYS, OPERAND)
            sums = warpgroup_mma(weights, values.index(before + j), sums, is_async=True)
        sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
        sums = warpgroup_mma_init(sums)
        for t in range(before // 2):
            sums, parts = with_two(
                q, keys, values, 2 * t, sums, parts, line, factor, SCORES, ROWS, KEYS, PRODUCTS, OPERAND
            )
        Z = gl.convert_layout(total_of_parts(parts), gl.SliceLayout(1, SUM))
        reciprocal = reciprocal_of(Z, ROWS, BLOCK_D, SUM)
        sums = warpgroup_mma_wait(0, deps=[sums])
        first = g.to(gl.int64) * (N * BLOCK_D) + i * (ROWS * BLOCK_D)
        write_block(sums, reciprocal, v_scale, out_ptr, first, ROWS, BLOCK_D, ROWS_OF_WARPS)
