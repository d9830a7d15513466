"""Attention of whole heads of 256 keys on Hopper: q, too, stays in shared memory.

`held.py`, whose heads are too long for that: here no block of queries waits for all warps of its program.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared

from hccs.backends.triton.attention.gluon_steps import (
    as_halves,
    barrier,
    begin_async_copy,
    parameters_of,
    reinterpreted,
    reordered,
)
from hccs.backends.triton.attention.held import attend


@gluon.jit
def attention_all_held(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, heads, sharing,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    SCORES: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """One head of TILES * KEYS queries and as many keys, of 64 columns; q counts in words of four of them."""
    N: gl.constexpr = TILES * KEYS
    BLOCKS: gl.constexpr = N // ROWS
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    row = gl.arange(0, N, gl.SliceLayout(1, ROW))[:, None]
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))[None, :]
    query = gl.arange(0, N, gl.SliceLayout(1, WORDS))[:, None]
    word = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORDS))[None, :]
    keys = gl.allocate_shared_memory(gl.int8, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    values = gl.allocate_shared_memory(gl.float16, [N, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2))
    q_words = gl.allocate_shared_memory(gl.int32, [N, BLOCK_D // 4], gl.NVMMASharedLayout(BLOCK_D, 32, 2))
    queries = reinterpreted(
        q_words, gl.int8, [BLOCKS, ROWS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    )  # fmt: skip
    task = gl.program_id(0)
    # Divided in 32 bits, which is short.
    batch, h, shared = task // heads, task % heads, task % heads // sharing
    batch, h, shared = batch.to(gl.int64), h.to(gl.int64), shared.to(gl.int64)
    found = gl.load(v_ptr + (batch * v0 + shared * v1) + (row * v2 + column))
    begin_async_copy(keys, k_ptr + (batch * k0 + shared * k1) + (row * k2 + column))
    begin_async_copy(q_words, q_ptr + (batch * q0 + h * q1) + (query * q2 + word))
    async_copy.commit_group()
    parameters = parameters_of(table_ptr + batch * t0 + h * t1, SCORES)
    values.store(reordered(as_halves(found), N))
    async_copy.wait_group(0)
    barrier()
    fence_async_shared()
    for i in range(BLOCKS):
        first = task.to(gl.int64) * (N * BLOCK_D) + i * (ROWS * BLOCK_D)
        attend(queries.index(i), keys, values, parameters, out_ptr, first, TILES, SCORES, ROWS, KEYS, BLOCK_D)
