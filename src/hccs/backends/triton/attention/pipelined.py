"""Attention on many keys on Hopper: tensor cores work on some keys while scores of others are computed.

The two passes of `streamed.py` in Gluon, Triton's language beneath its own, where a product may be under way
while its program computes something else. Keys come in blocks of 128, whose halves take turns: while one half
is computed on, copies and v's float16 fill the room of the other, so that a barrier per half is all that a
program waits at.
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

from hccs.backends.triton.attention.pipelined_steps import (
    HALF,
    HALVES_OF_BYTES,
    LOWEST,
    ROUNDED_HALF_UP,
    STEP,
    STEPS_OF_BYTES,
    ZERO,
    divided,
    even_and_odd,
    halves_of,
    hidden,
    line_of,
    maxima,
    ones_below,
    plus,
    scores_of,
    sums_of,
)
from hccs.backends.triton.codes import BYTES, PACKED

# Names that Triton 3.9 changed.
_begin_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

KEYS = gl.constexpr(128)
LARGEST_SCORE = 1023
"""Sums of a block of larger ones may leave float32."""

# Adding this leaves the bits from 2^12 steps on.
_FAR = gl.constexpr(1.5 * 2.0**11)
FAR_STEPS = 2**11
"""What sums hold at most after the rest of them went to shared memory, in steps of 2^-24."""


@gluon.jit
def begin_products(q, keys, acc):
    """q.k, over what `acc` held."""
    return warpgroup_mma(q, keys.permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def begin_copy(room, place, step, block, slot, wanted, UPPER: gl.constexpr):
    """Of half a block into a slot of two; nothing is read of one that is not wanted."""
    there = place + (block * KEYS + (HALF if UPPER else 0)) * step
    chosen = gl.full(there.shape, True, gl.int1, there.type.layout) & wanted
    _begin_copy(room.index(slot & 1), there, mask=chosen)


@gluon.jit
def begin_keys(room, place, step, u, count, UPPER: gl.constexpr):
    """Half of block u of both passes."""
    block = gl.minimum(gl.where(u < count, u, u - count), count - 1)
    begin_copy(room, place, step, block, u, u < 2 * count, UPPER)


@gluon.jit
def begin_values(room, place, step, t, count, UPPER: gl.constexpr):
    """Half of block t of v."""
    begin_copy(room, place, step, gl.minimum(t, count - 1), t, t < count, UPPER)


@gluon.jit
def store_values(values, bytes_of_v, t, RAISED: gl.constexpr, ROW: gl.constexpr):
    """Half of block t of v as float16, or 128 more in steps of 2^-24; a thread reads what it copied."""
    halves = gl.inline_asm_elementwise(
        STEPS_OF_BYTES if RAISED else HALVES_OF_BYTES, "=r,=r,r", [bytes_of_v.index(t & 1).load(ROW)],
        dtype=gl.float16, is_pure=True, pack=4,
    )  # fmt: skip
    values.index(t & 1).store(halves)
    fence_async_shared()


@gluon.jit
def seen_maxima(now, maximum, limit, first, MASKED: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """The maxima with those of half a block, whose product is under way."""
    acc = warpgroup_mma_wait(0, deps=[now])
    seen = acc
    if MASKED:
        seen = hidden(acc, limit, first, LAYOUT)
    return acc, gl.maximum(maximum, maxima(seen, ROWS))


@gluon.jit
def maxima_of_block(
    q, keys, k_place, k2, t, count, acc, maximum, limit, bytes_of_v, values,
    LAST: gl.constexpr, MASKED: gl.constexpr, RAISED: gl.constexpr, ROWS: gl.constexpr,
    LAYOUT: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    """The first pass over block t; the LAST brings the first v too."""
    lower, upper = keys
    async_copy.wait_group(2)
    _barrier()
    now = begin_products(q, lower.index(t & 1), acc)
    begin_keys(upper, k_place, k2, t + 1, count, True)
    async_copy.commit_group()
    acc, maximum = seen_maxima(now, maximum, limit, t * KEYS, MASKED, ROWS, LAYOUT)
    async_copy.wait_group(1 if LAST else 2)
    _barrier()
    now = begin_products(q, upper.index(t & 1), acc)
    begin_keys(lower, k_place, k2, t + 2, count, False)
    async_copy.commit_group()
    if LAST:
        store_values(values, bytes_of_v, 0, RAISED, ROW)
    acc, maximum = seen_maxima(now, maximum, limit, t * KEYS + HALF, MASKED, ROWS, LAYOUT)
    return acc, maximum


@gluon.jit
def add_scores(
    values, now, sums, parts, factor, line, limit, first, MASKED: gl.constexpr, SCORES: gl.constexpr,
    SUMS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr, OPERAND: gl.constexpr,
):  # fmt: skip
    """Those of half a block, whose product is under way, to their sums and, times v, to the output's."""
    acc, done = warpgroup_mma_wait(0, deps=[now, sums])
    pairs = scores_of(acc, factor, line, SCORES, ROWS)
    if MASKED:
        pairs = pairs & ones_below(limit, first, ROWS, LAYOUT)
    parts = plus(parts, sums_of(pairs, SUMS, ROWS))
    weights = gl.convert_layout(halves_of(pairs, ROWS), OPERAND, assert_trivial=True)
    return acc, warpgroup_mma(weights, values, warpgroup_mma_init(done), is_async=True), parts


@gluon.jit
def scores_of_block(
    q, keys, k_place, k2, bytes_of_v, v_place, v2, values, t, count, acc, sums, parts, factor, line, limit,
    LAST: gl.constexpr, MASKED: gl.constexpr, RAISED: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr,
    ROWS: gl.constexpr, LAYOUT: gl.constexpr, OPERAND: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    """The second pass over block t."""
    lower, upper = keys
    u = count + t
    async_copy.wait_group(2)
    _barrier()
    now = begin_products(q, lower.index(u & 1), acc)
    if not LAST:
        begin_keys(upper, k_place, k2, u + 1, count, True)
        begin_values(bytes_of_v[0], v_place, v2, t + 2, count, False)
    async_copy.commit_group()
    store_values(values[1], bytes_of_v[1], t, RAISED, ROW)
    acc, sums, parts = add_scores(
        values[0].index(t & 1), now, sums, parts, factor, line, limit, t * KEYS,
        MASKED, SCORES, SUMS, ROWS, LAYOUT, OPERAND,
    )  # fmt: skip
    async_copy.wait_group(2)
    _barrier()
    now = begin_products(q, upper.index(u & 1), acc)
    if not LAST:
        begin_keys(lower, k_place, k2, u + 2, count, False)
        begin_values(bytes_of_v[1], v_place, v2, t + 2, count, True)
        async_copy.commit_group()
        store_values(values[0], bytes_of_v[0], t + 1, RAISED, ROW)
    return add_scores(
        values[1].index(t & 1), now, sums, parts, factor, line, limit, t * KEYS + HALF,
        MASKED, SCORES, SUMS, ROWS, LAYOUT, OPERAND,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["blocks", "tasks"])
def attention_pipelined(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nq, nk, d, heads, sharing, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    CAUSAL: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, LONG: gl.constexpr, RAISED: gl.constexpr,
    FLUSH: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """A block of queries on whole blocks of keys; causal ones on as many as they see any of.

    RAISED says that sums with 128 + v, which takes fewer instructions to come by, are exact too.
    """
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 32])
    QUERIES: gl.constexpr = gl.DotOperandLayout(0, PRODUCTS, 4)
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [512 // BLOCK_D, BLOCK_D // 16], [WARPS, 1], [1, 0])
    K: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    BYTES_OF_V: gl.constexpr = gl.SwizzledSharedLayout(16, 1, 1, [1, 0])
    V: gl.constexpr = gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    g = gl.program_id(0) // blocks
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    first = (gl.program_id(0) % blocks) * ROWS
    count = nk // KEYS
    if CAUSAL:  # the last queries, which take longest, first
        first = nq - ROWS - first
        count = (first + ROWS + nk - nq) // KEYS
    full = count - 1  # causal rows see the last block in part
    row = gl.arange(0, HALF, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    k_place = k_ptr + batch * k0 + (h // sharing) * k1 + row[:, None] * k2 + column[None, :]
    v_place = v_ptr + batch * v0 + (h // sharing) * v1 + row[:, None] * v2 + column[None, :]
    # Of every half block two, by the parity of the block.
    SHAPE: gl.constexpr = [2, HALF, BLOCK_D]
    keys = gl.allocate_shared_memory(gl.int8, SHAPE, K), gl.allocate_shared_memory(gl.int8, SHAPE, K)
    bytes_of_v = (
        gl.allocate_shared_memory(gl.int8, SHAPE, BYTES_OF_V),
        gl.allocate_shared_memory(gl.int8, SHAPE, BYTES_OF_V),
    )
    values = gl.allocate_shared_memory(gl.float16, SHAPE, V), gl.allocate_shared_memory(gl.float16, SHAPE, V)
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, QUERIES))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, QUERIES))
    q = gl.load(q_ptr + batch * q0 + h * q1 + query[:, None] * q2 + column[None, :])
    begin_keys(keys[0], k_place, k2, 0, count, False)
    async_copy.commit_group()
    begin_keys(keys[1], k_place, k2, 0, count, True)
    async_copy.commit_group()
    begin_keys(keys[0], k_place, k2, 1, count, False)
    for block in gl.static_range(2):
        begin_values(bytes_of_v[0], v_place, v2, block, count, False)
        begin_values(bytes_of_v[1], v_place, v2, block, count, True)
    async_copy.commit_group()
    table_ptr += batch * t0 + h * t1
    B, S, D = gl.load(table_ptr), gl.load(table_ptr + 1), gl.load(table_ptr + 2)
    S2, D2, f = gl.load(table_ptr + 3), gl.load(table_ptr + 4), gl.load(table_ptr + 5)
    multiplier, shift, v_scale = gl.load(table_ptr + 6), gl.load(table_ptr + 7), gl.load(table_ptr + 10)
    if SCORES == BYTES:
        B, S, S2 = B << (8 - f), S << (8 - f), S2 << (8 - f)
    factor = multiplier.to(gl.float32) * ((127 - shift) << 23).to(gl.float32, bitcast=True)
    limit = first + gl.arange(0, ROWS, gl.SliceLayout(1, PRODUCTS)) + (1 + nk - nq)

    # The largest product gives the largest logit, for the factor is positive.
    acc = gl.zeros([ROWS, HALF], gl.int32, PRODUCTS)
    maximum = maxima(gl.full([ROWS, HALF], LOWEST, gl.int32, PRODUCTS), ROWS)
    for t in range(full):
        acc, maximum = maxima_of_block(
            q, keys, k_place, k2, t, count, acc, maximum, limit, bytes_of_v[0], values[0],
            False, False, RAISED, ROWS, PRODUCTS, ROW,
        )  # fmt: skip
    acc, maximum = maxima_of_block(
        q, keys, k_place, k2, full, count, acc, maximum, limit, bytes_of_v[0], values[0],
        True, CAUSAL, RAISED, ROWS, PRODUCTS, ROW,
    )  # fmt: skip
    largest = gl.convert_layout(gl.max(maximum, axis=1), gl.SliceLayout(1, PRODUCTS)).to(gl.float32)
    largest = gl.inline_asm_elementwise(
        ROUNDED_HALF_UP, "=r,f,f", [largest, factor], dtype=gl.int32, is_pure=True, pack=1
    )
    line = line_of(largest + ZERO, B, S, D, S2, D2, SCORES, ROWS, PRODUCTS)

    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    none, _ = even_and_odd(gl.zeros([ROWS, HALF], gl.int32, PRODUCTS), ROWS)
    parts = sums_of(none, SUMS, ROWS)
    chunk = gl.maximum(full, 1)
    if LONG:  # sums that float32 may not hold leave their upper bits in shared memory every FLUSH blocks
        chunk = FLUSH
        far = gl.allocate_shared_memory(gl.float32, [ROWS, BLOCK_D], gl.SwizzledSharedLayout(4, 1, 1, [1, 0]))
        far.store(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    for start in range(0, full, chunk):
        for t in range(start, gl.minimum(start + chunk, full)):
            acc, sums, parts = scores_of_block(
                q, keys, k_place, k2, bytes_of_v, v_place, v2, values, t, count, acc, sums, parts, factor,
                line, limit, False, False, RAISED, SCORES, SUMS, ROWS, PRODUCTS, OPERAND, ROW,
            )  # fmt: skip
        if LONG:
            added = warpgroup_mma_wait(0, deps=[sums])
            upper = (added + _FAR) - _FAR
            far.store(far.load(SUM) + upper)
            sums = warpgroup_mma_init(added - upper)
    acc, sums, parts = scores_of_block(
        q, keys, k_place, k2, bytes_of_v, v_place, v2, values, full, count, acc, sums, parts, factor,
        line, limit, True, CAUSAL, RAISED, SCORES, SUMS, ROWS, PRODUCTS, OPERAND, ROW,
    )  # fmt: skip
    async_copy.wait_group(0)
    total = warpgroup_mma_wait(0, deps=[sums])

    if SUMS == PACKED:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    Z = gl.maximum(gl.convert_layout(gl.sum(parts, axis=1), gl.SliceLayout(1, SUM)), 1).to(gl.float32) * STEP
    if LONG:  # rounded once, as an integer would be
        result = gl.div_rn(far.load(SUM) + total, Z[:, None] + gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    elif RAISED:
        Z = Z * STEP
        result = divided(total - 128 * Z[:, None], Z, ROWS, BLOCK_D, SUM)
    else:
        result = divided(total, Z, ROWS, BLOCK_D, SUM)
    result = (result * v_scale.to(gl.float32, bitcast=True)).to(out_ptr.dtype.element_ty)
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, SUM))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, SUM))
    gl.store(out_ptr + g.to(gl.int64) * nq * BLOCK_D + (query[:, None] * BLOCK_D + column[None, :]), result)
