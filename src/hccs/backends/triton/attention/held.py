"""Attention of whole heads of 512 keys on Hopper: k and v stay in shared memory, logits in registers.

`resident.py` in Gluon, where the products of the next keys run beside the logits of these, and the scores of
the next beside the product of these with v. q is read a block ahead. A thread writes its part of the output
as it has it: v's columns lie in shared memory in such an order that its sums are of neighbouring columns.
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
    distances,
    larger_of_pairs,
    logits_of_pairs,
    maxima_of_pairs,
    maximum_of_parts,
    parameters_of,
    reciprocal_of,
    reinterpreted,
    reordered,
    scores_of_pairs,
    sums_of_pairs,
    total_of_parts,
    write_block,
)


@gluon.jit
def begin_products(
    q, keys, part: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """q.k of a block of keys, into registers of their own: see `gluon_steps.py`."""
    acc = gl.zeros([ROWS, KEYS], gl.int32, LAYOUT)
    return warpgroup_mma(q, keys.slice(part * KEYS, KEYS).permute((1, 0)), acc, use_acc=False, is_async=True)


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
    acc = begin_products(q, keys, 0, ROWS, KEYS, PRODUCTS)
    words = ()
    for j in gl.static_range(TILES):
        now = acc
        if j + 1 < TILES:
            acc = begin_products(q, keys, j + 1, ROWS, KEYS, PRODUCTS)
            now = warpgroup_mma_wait(1, deps=[now])
        else:
            now = warpgroup_mma_wait(0, deps=[now])
        pairs = logits_of_pairs(now, factor, ROWS, KEYS)
        words = words + (pairs,)
        if j == 0:
            parts = maxima_of_pairs(pairs, ROWS, KEYS)
        else:
            parts = larger_of_pairs(parts, maxima_of_pairs(pairs, ROWS, KEYS))
    line = distances(maximum_of_parts(parts), B, S, D, S2, D2, SCORES, ROWS, KEYS, PRODUCTS)
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    for j in gl.static_range(TILES):
        pairs = scores_of_pairs(words[j], line, SCORES)
        if j == 0:
            parts = sums_of_pairs(pairs, ROWS, KEYS)
        else:
            parts += sums_of_pairs(pairs, ROWS, KEYS)
        weights = as_operand(pairs, ROWS, KEYS, OPERAND)
        sums = warpgroup_mma(weights, values.slice(j * KEYS, KEYS), sums, is_async=True)
    Z = gl.convert_layout(total_of_parts(parts), gl.SliceLayout(1, SUM))
    reciprocal = reciprocal_of(Z, ROWS, BLOCK_D, SUM)
    sums, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    write_block(sums, reciprocal, v_scale, out_ptr, first, ROWS, BLOCK_D, [[16, 0], [32, 0]])


@gluon.jit
def attention_held(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, heads, sharing,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    SCORES: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """One head of TILES * KEYS queries and as many keys, of 64 columns; q counts in words of four of them."""
    N: gl.constexpr = TILES * KEYS
    BLOCKS: gl.constexpr = N // ROWS
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    row = gl.arange(0, N, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    k_place = k_ptr + (row[:, None] * k2 + column[None, :])
    v_place = v_ptr + (row[:, None] * v2 + column[None, :])
    query = gl.arange(0, ROWS, gl.SliceLayout(1, WORDS))
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))
    q_place = q_ptr + (query[:, None] * q2 + word[None, :])
    keys = gl.allocate_shared_memory(gl.int8, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    values = gl.allocate_shared_memory(gl.float16, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2))
    q_words = gl.allocate_shared_memory(
        gl.int32, [ROWS, BLOCK_D // 4], gl.NVMMASharedLayout(BLOCK_D, 32, 2)
    )  # fmt: skip
    q = reinterpreted(q_words, gl.int8, [ROWS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    task = gl.program_id(0)
    batch, h = (task // heads).to(gl.int64), (task % heads).to(gl.int64)
    begin_async_copy(keys, k_place + (batch * k0 + (h // sharing) * k1))
    async_copy.commit_group()
    ahead = gl.load(q_place + (batch * q0 + h * q1))
    # One head; as a loop, so that ptxas spills what serves it alone and not what the loop inside needs.
    for g in range(task, task + 1, gl.num_programs(0)):
        batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
        q_head = q_place + (batch * q0 + h * q1)
        found = gl.load(v_place + (batch * v0 + (h // sharing) * v1))
        parameters = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
        values.store(reordered(as_halves(found), N))
        async_copy.wait_group(0)
        barrier()
        fence_async_shared()
        for i in range(BLOCKS):
            q_words.store(ahead)
            fence_async_shared()
            barrier()
            ahead = gl.load(q_head + gl.minimum(i + 1, BLOCKS - 1) * ROWS * q2)
            first = gl.cast(g, gl.int64) * (N * BLOCK_D) + i * (ROWS * BLOCK_D)
            attend(q, keys, values, parameters, out_ptr, first, TILES, SCORES, ROWS, KEYS, BLOCK_D)
