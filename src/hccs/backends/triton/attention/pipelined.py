"""Causal attention on many keys on Hopper: products are under way while scores of others are computed.

This is the second kernel of `tiles.py` in Gluon. Keys come in blocks of 128, whose parts take turns: the
tensor cores multiply q by the next part, and the scores of the part before by v, while the scores of this
part are computed. No product that is read crosses the end of a block: ptxas would wait for each. k and v
reach shared memory by asynchronous copies, two blocks ahead; there v becomes 128 + v, whose bytes are float16
in steps of 2^-24.
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
    as_raised_steps,
    barrier,
    begin_async_copy,
    distances,
    divided,
    logit_of_largest,
    logits_of_pairs,
    maxima_of_products,
    ones_below,
    parameters_of,
    plus,
    reciprocal_of,
    scores_of_pairs,
)
from hccs.backends.triton.attention.packed_logits import (
    LOWEST,
    STEP,
    even_and_odd,
    sums_of_pairs,
    total_of_parts,
)
from hccs.backends.triton.codes import ONE_LINE, PACKED

RING = gl.constexpr(4)
"""Blocks of k in shared memory: one in use, two on their way, and one that keeps the count a power of two."""

HALF = gl.constexpr(64)
"""Keys of a part in the first pass, which needs few registers."""

PART = gl.constexpr(32)
"""Keys of a part in the second pass."""


@gluon.jit
def begin_products(q, keys, part: gl.constexpr, acc, COLUMNS: gl.constexpr):
    """q.k of a part of a block, in the registers of `acc`."""
    part_of_keys = keys.slice(part * COLUMNS, COLUMNS).permute((1, 0))
    return warpgroup_mma(q, part_of_keys, acc, use_acc=False, is_async=True)


@gluon.jit
def block_at(t, count):
    """The block that step t of both passes takes: t, then t - count; beyond both passes, the last."""
    return gl.minimum(gl.where(t < count, t, t - count), count - 1)


@gluon.jit
def begin_copy(room, place, step, block, KEYS: gl.constexpr):
    """The copy of a block of k or v into shared memory."""
    begin_async_copy(room, place + block * KEYS * step)


@gluon.jit
def begin_keys(ring, place, step, t, count, KEYS: gl.constexpr):
    """The copy of block t of both passes into the ring."""
    begin_copy(ring.index(t & (RING - 1)), place, step, block_at(t, count), KEYS)


@gluon.jit
def store_values(values, bytes_of_v, t, LAYOUT: gl.constexpr):
    """Block t of v as operand; a thread reads what it copied."""
    found = as_raised_steps(bytes_of_v.index(t & 1).load(LAYOUT))
    values.index(t & 1).store(found)
    fence_async_shared()


@gluon.jit
def hidden(acc, limit, first, LAYOUT: gl.constexpr):
    """The least there is in place of what a row does not see of the keys from `first` on."""
    key = first + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT))
    return gl.where(key[None, :] < limit[:, None], acc, LOWEST)


@gluon.jit
def maxima_of_block(
    q, keys, left, right, maximum, limit, first,
    MASKED: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The first pass over a block, which starts at key `first`."""
    left = begin_products(q, keys, 0, left, HALF)
    right = begin_products(q, keys, 1, right, HALF)
    left = warpgroup_mma_wait(1, deps=[left])
    seen = left
    if MASKED:
        seen = hidden(left, limit, first, LAYOUT)
    maximum = gl.maximum(maximum, maxima_of_products(seen, ROWS, HALF))
    right = warpgroup_mma_wait(0, deps=[right])
    seen = right
    if MASKED:
        seen = hidden(right, limit, first + HALF, LAYOUT)
    return left, right, gl.maximum(maximum, maxima_of_products(seen, ROWS, HALF))


@gluon.jit
def scores_of_block(
    q, keys, values, now, then, sums, parts, factor, line, limit, first,
    MASKED: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    LAYOUT: gl.constexpr, OPERAND: gl.constexpr,
):  # fmt: skip
    """The second pass over a block, whose first two products are under way."""
    PARTS: gl.constexpr = KEYS // PART
    left, right = now, now
    for part in gl.static_range(PARTS):
        if part == 0:
            acc, done = warpgroup_mma_wait(1, deps=[now, sums])
            sums = warpgroup_mma_init(done)
        elif part + 1 < PARTS:
            acc = warpgroup_mma_wait(2, deps=[now])
        else:  # for all but what this part will add
            acc, done = warpgroup_mma_wait(0, deps=[now, sums])
            sums = warpgroup_mma_init(done)
        pairs = scores_of_pairs(logits_of_pairs(acc, factor, ROWS, PART), line, ONE_LINE)
        if MASKED:
            pairs = pairs & ones_below(limit, first + part * PART, ROWS, PART, LAYOUT)
        parts = plus(parts, sums_of_pairs(pairs, PACKED, ROWS, PART))
        weights = as_operand(pairs, ROWS, PART, OPERAND)
        sums = warpgroup_mma(weights, values.slice(part * PART, PART), sums, is_async=True)
        now = then
        if part + 2 < PARTS:
            then = begin_products(q, keys, part + 2, acc, PART)
        if part % 2 == 0:
            left = acc
        else:
            right = acc
    return left, right, sums, parts


@gluon.jit(do_not_specialize=["blocks"])
def attention_pipelined(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr, nk, nq, heads, sharing, blocks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    BLOCK_D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """A block of queries on the blocks of keys that it sees any of; blocks end where both sequences do."""
    WARPS: gl.constexpr = ROWS // 16
    FIRST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 32])
    SECOND: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [512 // BLOCK_D, BLOCK_D // 16], [WARPS, 1], [1, 0])
    g = gl.program_id(0) // blocks
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    B, S, D, S2, D2, factor, v_scale = parameters_of(table_ptr + batch * t0 + h * t1, ONE_LINE)
    first = nq - ROWS - (gl.program_id(0) % blocks) * ROWS  # the last queries, which take longest, first
    count = (first + ROWS + nk - nq) // KEYS
    full = count - 1  # the last block is seen in part
    row = gl.arange(0, KEYS, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    k_place = k_ptr + batch * k0 + (h // sharing) * k1 + row[:, None] * k2 + column[None, :]
    v_place = v_ptr + batch * v0 + (h // sharing) * v1 + row[:, None] * v2 + column[None, :]
    ring = gl.allocate_shared_memory(gl.int8, [RING, KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    begin_keys(ring, k_place, k2, 0, count, KEYS)
    async_copy.commit_group()
    begin_keys(ring, k_place, k2, 1, count, KEYS)
    async_copy.commit_group()
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, ROW))
    q = gl.load(q_ptr + batch * q0 + h * q1 + query[:, None] * q2 + column[None, :])
    q = gl.convert_layout(q, gl.DotOperandLayout(0, SECOND, 4))
    limit = first + gl.arange(0, ROWS, gl.SliceLayout(1, SECOND)) + (1 + nk - nq)

    # The first pass: the largest product gives the largest logit, for the factor is positive.
    q_first = gl.convert_layout(q, gl.DotOperandLayout(0, FIRST, 4), assert_trivial=True)
    limit_first = gl.convert_layout(limit, gl.SliceLayout(1, FIRST))
    left = gl.zeros([ROWS, HALF], gl.int32, FIRST)
    right = gl.zeros([ROWS, HALF], gl.int32, FIRST)
    maximum = maxima_of_products(gl.full([ROWS, HALF], LOWEST, gl.int32, FIRST), ROWS, HALF)
    for t in range(full):
        barrier()
        begin_keys(ring, k_place, k2, t + 2, count, KEYS)
        async_copy.commit_group()
        async_copy.wait_group(2)
        barrier()
        left, right, maximum = maxima_of_block(
            q_first, ring.index(t & (RING - 1)), left, right, maximum, limit_first, 0, False, ROWS, FIRST
        )
    bytes_of_v = gl.allocate_shared_memory(
        gl.int8, [2, KEYS, BLOCK_D], gl.SwizzledSharedLayout(16, 1, 1, [1, 0])
    )
    barrier()
    begin_keys(ring, k_place, k2, count + 1, count, KEYS)
    begin_copy(bytes_of_v.index(0), v_place, v2, 0, KEYS)
    async_copy.commit_group()
    begin_copy(bytes_of_v.index(1), v_place, v2, block_at(count + 1, count), KEYS)
    async_copy.commit_group()
    async_copy.wait_group(3)
    barrier()
    left, right, maximum = maxima_of_block(
        q_first, ring.index(full & (RING - 1)), left, right, maximum, limit_first, full * KEYS,
        True, ROWS, FIRST,
    )  # fmt: skip

    largest = gl.convert_layout(gl.max(maximum, axis=1), gl.SliceLayout(1, SECOND))
    line = distances(logit_of_largest(largest, factor), B, S, D, S2, D2, ONE_LINE, ROWS, PART, SECOND)

    # The second pass.
    values = gl.allocate_shared_memory(
        gl.float16, [2, KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    )
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    none, _ = even_and_odd(gl.zeros([ROWS, PART], gl.int32, SECOND), ROWS, PART)
    parts = sums_of_pairs(none, PACKED, ROWS, PART)
    even = gl.zeros([ROWS, PART], gl.int32, SECOND)
    odd = gl.zeros([ROWS, PART], gl.int32, SECOND)
    for t in range(full):
        u = count + t
        # k and v of this block are there, and all are done with the block before.
        async_copy.wait_group(1)
        barrier()
        store_values(values, bytes_of_v, t, ROW)
        begin_keys(ring, k_place, k2, u + 2, count, KEYS)
        barrier()
        keys = ring.index(u & (RING - 1))
        now = begin_products(q, keys, 0, even, PART)
        then = begin_products(q, keys, 1, odd, PART)
        begin_copy(bytes_of_v.index(t & 1), v_place, v2, block_at(u + 2, count), KEYS)
        async_copy.commit_group()
        even, odd, sums, parts = scores_of_block(
            q, keys, values.index(t & 1), now, then, sums, parts, factor, line, limit, 0,
            False, ROWS, KEYS, SECOND, OPERAND,
        )  # fmt: skip
    async_copy.wait_group(0)
    barrier()
    keys = ring.index((count + full) & (RING - 1))
    now = begin_products(q, keys, 0, even, PART)
    then = begin_products(q, keys, 1, odd, PART)
    store_values(values, bytes_of_v, full, ROW)
    barrier()
    even, odd, sums, parts = scores_of_block(
        q, keys, values.index(full & 1), now, then, sums, parts, factor, line, limit, full * KEYS,
        True, ROWS, KEYS, SECOND, OPERAND,
    )  # fmt: skip
    async_copy.wait_group(0)  # before anything else takes their place
    total = warpgroup_mma_wait(0, deps=[sums])

    Z = gl.convert_layout(total_of_parts(parts, PACKED), gl.SliceLayout(1, SUM))
    # The sums of v without its 128, in the steps that `divided` takes: integers below 2^24 all the way.
    total = total * (1 / STEP) - (Z.to(gl.float32) * (128 * STEP))[:, None]
    result = divided(total, reciprocal_of(Z, ROWS, BLOCK_D, SUM)) * v_scale
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_D, BLOCK_D // 8], [WARPS, 1], [1, 0])
    result = gl.convert_layout(result.to(out_ptr.dtype.element_ty), OUT)
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, OUT))
    gl.store(out_ptr + g.to(gl.int64) * nq * BLOCK_D + (query[:, None] * BLOCK_D + column[None, :]), result)
