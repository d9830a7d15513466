"""Attention of whole heads of 256 or 512 keys on Hopper: k and v stay in shared memory, logits in registers.

`resident.py` in Gluon, where the products of the next keys run beside the logits of these, and the scores of
the next beside the product of these with v. A thread reads its part of the operand q, a block ahead, and
writes its part of the output: v's columns lie in shared memory in such an order that its sums are of
neighbouring columns. So no block of queries waits for all warps of its program.
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
    as_halves,
    as_operand,
    barrier,
    begin_async_copy,
    bytes_of_words,
    distances,
    divided,
    larger_of_pairs,
    logits_of_pairs,
    maxima_of_pairs,
    maximum_of_parts,
    ones_below,
    parameters_of,
    reciprocal_of,
    scores_of_pairs,
    sums_of_pairs,
    total_of_parts,
)


@gluon.jit
def begin_products(
    q, keys, part: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """q.k of a block of keys, into registers of their own: see `gluon_steps.py`."""
    acc = gl.zeros([ROWS, KEYS], gl.int32, LAYOUT)
    return warpgroup_mma(q, keys.slice(part * KEYS, KEYS).permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def on_held_keys(
    q, keys, values, parameters, limit, TILES: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, SUMS: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, BLOCK_D: gl.constexpr,
    PRODUCTS: gl.constexpr, SUM: gl.constexpr, OPERAND: gl.constexpr,
):  # fmt: skip
    """The sums of one block of queries, under way, with their last operand, and Z.

    It sees TILES blocks of keys, of the last MASKED ones those below `limit`, counted from the first of them.
    """
    B, S, D, S2, D2, factor, _ = parameters
    acc = begin_products(q, keys, 0, ROWS, KEYS, PRODUCTS)
    words, seen = (), ()
    for j in gl.static_range(TILES):
        now = acc
        if j + 1 < TILES:
            acc = begin_products(q, keys, j + 1, ROWS, KEYS, PRODUCTS)
            now = warpgroup_mma_wait(1, deps=[now])
        else:
            now = warpgroup_mma_wait(0, deps=[now])
        pairs = logits_of_pairs(now, factor, ROWS, KEYS)
        if j + MASKED >= TILES:
            ones = ones_below(limit, (j + MASKED - TILES) * KEYS, ROWS, KEYS, PRODUCTS)
            pairs = pairs & ones
            seen = seen + (ones,)
        words = words + (pairs,)
        if j == 0:
            parts = maxima_of_pairs(pairs, ROWS, KEYS)
        else:
            parts = larger_of_pairs(parts, maxima_of_pairs(pairs, ROWS, KEYS))
    line = distances(maximum_of_parts(parts), B, S, D, S2, D2, SCORES, ROWS, KEYS, PRODUCTS)
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    for j in gl.static_range(TILES):
        pairs = scores_of_pairs(words[j], line, SCORES)
        if j + MASKED >= TILES:
            pairs = pairs & seen[j + MASKED - TILES]
        if j == 0:
            parts = sums_of_pairs(pairs, SUMS, ROWS, KEYS)
        else:
            parts += sums_of_pairs(pairs, SUMS, ROWS, KEYS)
        weights = as_operand(pairs, ROWS, KEYS, OPERAND)
        sums = warpgroup_mma(weights, values.slice(j * KEYS, KEYS), sums, is_async=True)
    return sums, weights, gl.convert_layout(total_of_parts(parts, SUMS), gl.SliceLayout(1, SUM))


@gluon.jit
def attention_held(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, heads, sharing,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    CAUSAL: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, BLOCK_D: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, TILES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """One head of TILES * KEYS queries and as many keys, of 64 columns; q counts in words of four of them.

    TOGETHER blocks of causal queries see the same blocks of keys: a loop of each kind takes less room in the
    instruction cache than one block of each.
    """
    N: gl.constexpr = TILES * KEYS
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    # A thread's words of q are its part of the operand.
    WORDS: gl.constexpr = gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [ROWS, 16]
    )
    # Eight columns twice, where its sums have two columns eight times.
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [ROWS, BLOCK_D],
    )  # fmt: skip
    g = gl.program_id(0)
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    row = gl.arange(0, N, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    keys = gl.allocate_shared_memory(gl.int8, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    values = gl.allocate_shared_memory(gl.float16, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2))
    k_ptr += batch * k0 + (h // sharing) * k1
    v_ptr += batch * v0 + (h // sharing) * v1
    begin_async_copy(keys, k_ptr + (row[:, None] * k2 + column[None, :]))
    async_copy.commit_group()
    query = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))
    q_place = q_ptr + (batch * q0 + h * q1) + (query[:, None] * q2 + word[None, :])
    ahead = gl.load(q_place)
    halves = as_halves(gl.load(v_ptr + (row[:, None] * v2 + column[None, :])))
    parameters = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
    _, _, _, _, _, _, v_scale = parameters
    values.store(gl.reshape(gl.permute(gl.reshape(halves, [N, 2, 4, 4, 2]), (0, 1, 3, 2, 4)), [N, BLOCK_D]))
    async_copy.wait_group(0)
    barrier()
    fence_async_shared()
    row_out = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column_out = gl.arange(0, BLOCK_D, gl.SliceLayout(0, OUT))
    place = out_ptr + g.to(gl.int64) * (N * BLOCK_D) + (row_out[:, None] * BLOCK_D + column_out[None, :])
    BLOCKS: gl.constexpr = N // ROWS
    for group in gl.static_range(BLOCKS // TOGETHER):
        for i in range(group * TOGETHER, group * TOGETHER + TOGETHER):
            q = gl.convert_layout(
                bytes_of_words(ahead, ROWS, BLOCK_D), gl.DotOperandLayout(0, PRODUCTS, 4), assert_trivial=True
            )
            ahead = gl.load(q_place + gl.minimum(i + 1, BLOCKS - 1) * ROWS * q2)
            limit = gl.arange(0, ROWS, gl.SliceLayout(1, PRODUCTS)) + (1 + (i - group * TOGETHER) * ROWS)
            sums, weights, Z = on_held_keys(
                q, keys, values, parameters, limit,
                (group + 1) * TOGETHER * ROWS // KEYS if CAUSAL else TILES,
                TOGETHER * ROWS // KEYS if CAUSAL else 0,
                SCORES, SUMS, ROWS, KEYS, BLOCK_D, PRODUCTS, SUM, OPERAND,
            )  # fmt: skip
            reciprocal = reciprocal_of(Z, ROWS, BLOCK_D, SUM)
            sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
            result = (divided(sums, reciprocal) * v_scale).to(out_ptr.dtype.element_ty)
            result = gl.permute(gl.reshape(result, [ROWS, 2, 4, 4, 2]), (0, 1, 3, 2, 4))
            result = gl.convert_layout(gl.reshape(result, [ROWS, BLOCK_D]), OUT, assert_trivial=True)
            gl.store(place + i * (ROWS * BLOCK_D), result)
