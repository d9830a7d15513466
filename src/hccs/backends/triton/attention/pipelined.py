"""Attention on many keys on Hopper: tensor cores work on some keys while scores of others are computed.

The two passes of `streamed.py`, in Gluon, Triton's language beneath its own: there a product may be under way
while its program computes something else. Keys come in blocks of 128, whose parts take turns: the products of
the next part run beside the scores of this one, and so does the product of the part before with v. No product
that is read crosses the end of a block: ptxas would wait for each. k and v reach shared memory by
asynchronous copies; v becomes float16 there, a block ahead.
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

from hccs.backends.triton.attention import packed_logits
from hccs.backends.triton.codes import APART, BY_BLOCK, BYTES, ONE_LINE, PACKED

KEYS = gl.constexpr(128)
"""Of a block."""
RING = gl.constexpr(4)
"""Blocks of k in shared memory: one in use, two on their way, and one that keeps the count a power of two."""

# Names that Triton 3.9 changed.
_begin_async_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

ZERO, LEAST, LARGEST = packed_logits.ZERO, packed_logits.LEAST, packed_logits.LARGEST
LOWEST, STEP = packed_logits.LOWEST, packed_logits.STEP
_PAIR_OF_LOGITS = packed_logits._PAIR_OF_LOGITS
_PAIR_OF_SCORES = packed_logits._PAIR_OF_SCORES
_PAIR_OF_TWO_LINES = packed_logits._PAIR_OF_TWO_LINES
_PAIR_OF_BYTES = packed_logits._PAIR_OF_BYTES
_HALVES_OF_BYTES = packed_logits._HALVES_OF_BYTES
_ROUNDED_HALF_UP = packed_logits._ROUNDED_HALF_UP
# The bits of 128 + v are a float16, 2^-24 times as large.
_STEPS_OF_BYTES = gl.constexpr("""{
    .reg .b32 x;
    xor.b32 x, $2, 0x80808080;
    prmt.b32 $0, x, 0, 0x4140;
    prmt.b32 $1, x, 0, 0x4342;
}""")


@gluon.jit
def even_and_odd(x, ROWS: gl.constexpr, PART: gl.constexpr):
    """Columns 0, 2, ... and 1, 3, ..., which one thread holds."""
    return gl.split(gl.reshape(x, [ROWS, PART // 2, 2]))


@gluon.jit
def beside_pairs(row, ROWS: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """One value per row in the layout of `even_and_odd`."""
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT))
    value, other = even_and_odd(row[:, None] + gl.zeros([ROWS, PART], gl.int32, LAYOUT), ROWS, PART)
    return value


@gluon.jit
def maxima(acc, ROWS: gl.constexpr, PART: gl.constexpr):
    """Of every eighth column, those that one thread holds.

    Assembly that is not pure keeps its place before the next product, which overwrites `acc`.
    """
    found = gl.max(gl.reshape(acc, [ROWS, PART // 8, 8]), axis=1)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [found], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def hidden(acc, limit, first, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """The least there is in place of what a row does not see of the keys from `first` on."""
    key = first + gl.arange(0, PART, gl.SliceLayout(0, LAYOUT))
    return gl.where(key[None, :] < limit[:, None], acc, LOWEST)


@gluon.jit
def ones_below(limit, first, ROWS: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """Words of ones in the halves whose key lies below its row's limit."""
    key = gl.arange(0, PART, gl.SliceLayout(0, LAYOUT))
    bits, other = even_and_odd((16 * (limit - first))[:, None] + (-16 * key)[None, :], ROWS, PART)
    zeros = gl.inline_asm_elementwise(
        "shl.b32 $0, -1, $1;", "=r,r", [gl.maximum(bits, 0)], dtype=gl.int32, is_pure=True, pack=1
    )
    return ~zeros


@gluon.jit
def scores_of(acc, factor, line, SCORES: gl.constexpr, ROWS: gl.constexpr, PART: gl.constexpr):
    """Scores of products, two to a word (eq. 2, 3)."""
    raised, limit, near_raised, near, S, S2, least = line
    even, odd = even_and_odd(acc, ROWS, PART)
    pairs = gl.inline_asm_elementwise(
        _PAIR_OF_LOGITS, "=r,r,r,f", [even, odd, factor], dtype=gl.int32, is_pure=False, pack=1
    )
    if SCORES == ONE_LINE:
        pairs = gl.inline_asm_elementwise(
            _PAIR_OF_SCORES, "=r,r,r,r,r,r", [pairs, raised, limit, S, least],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        CODE: gl.constexpr = _PAIR_OF_BYTES if SCORES == BYTES else _PAIR_OF_TWO_LINES
        pairs = gl.inline_asm_elementwise(
            CODE, "=r,r,r,r,r,r,r,r,r", [pairs, raised, limit, near_raised, near, S, S2, least],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    return pairs


@gluon.jit
def sums_of(pairs, SUMS: gl.constexpr, ROWS: gl.constexpr, PART: gl.constexpr):
    """Of the scores that one thread holds of a row: words of two sums if PACKED, else sums."""
    if SUMS == APART:
        pairs = (pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF)
    parts = gl.sum(gl.reshape(pairs, [ROWS, PART // 8, 4]), axis=1)
    if SUMS == BY_BLOCK:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    return parts


@gluon.jit
def halves_of(pairs, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """The halves of words as float16 columns; no instruction."""
    even = (pairs & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True)
    odd = (pairs >> 16).to(gl.int16).to(gl.float16, bitcast=True)
    return gl.reshape(gl.join(even, odd), [ROWS, COLUMNS])


@gluon.jit
def begin_products(q, ring, t, part: gl.constexpr, acc, PART: gl.constexpr):
    """q.k of a part of block t, over what `acc` held."""
    keys = ring.index(t & (RING - 1)).slice(part * PART, PART)
    return warpgroup_mma(q, keys.permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def maxima_of_block(
    q, ring, t, left, right, maximum, limit, first, MASKED: gl.constexpr, ROWS: gl.constexpr,
    PART: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The first pass over a block."""
    PARTS: gl.constexpr = KEYS // PART
    even = begin_products(q, ring, t, 0, left, PART)
    odd = begin_products(q, ring, t, 1, right, PART)
    for part in gl.static_range(0, PARTS, 2):
        left = warpgroup_mma_wait(1, deps=[even])
        seen = left
        if MASKED:
            seen = hidden(left, limit, first + part * PART, PART, LAYOUT)
        maximum = gl.maximum(maximum, maxima(seen, ROWS, PART))
        if part + 2 < PARTS:
            even = begin_products(q, ring, t, part + 2, left, PART)
            right = warpgroup_mma_wait(1, deps=[odd])
        else:
            right = warpgroup_mma_wait(0, deps=[odd])
        seen = right
        if MASKED:
            seen = hidden(right, limit, first + (part + 1) * PART, PART, LAYOUT)
        maximum = gl.maximum(maximum, maxima(seen, ROWS, PART))
        if part + 2 < PARTS:
            odd = begin_products(q, ring, t, part + 3, right, PART)
    return left, right, maximum


@gluon.jit
def scores_of_block(
    q, ring, values, bytes_of_v, t, u, left, right, sums, weights, parts, factor, line, limit, first,
    MASKED: gl.constexpr, AHEAD: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr,
    SHIFTED_V: gl.constexpr, ROWS: gl.constexpr, PART: gl.constexpr, BLOCK_D: gl.constexpr,
    LAYOUT: gl.constexpr, OPERAND: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    """The second pass over block t, the u-th of the ring; the product of its last part with v runs on."""
    PARTS: gl.constexpr = KEYS // PART
    now = begin_products(q, ring, u, 0, left, PART)
    then = begin_products(q, ring, u, 1, right, PART)
    for part in gl.static_range(PARTS):
        if part == 0:
            acc, done, weights = warpgroup_mma_wait(1, deps=[now, sums, weights])
        elif part + 1 < PARTS:
            acc = warpgroup_mma_wait(2, deps=[now])
        else:
            acc = warpgroup_mma_wait(1, deps=[now])
        pairs = scores_of(acc, factor, line, SCORES, ROWS, PART)
        if MASKED:
            pairs = pairs & ones_below(limit, first + part * PART, ROWS, PART, LAYOUT)
        parts += sums_of(pairs, SUMS, ROWS, PART)
        if part > 0:
            if part + 1 < PARTS:
                done, weights = warpgroup_mma_wait(1, deps=[sums, weights])
            else:
                done, weights = warpgroup_mma_wait(0, deps=[sums, weights])
        weights = gl.convert_layout(halves_of(pairs, ROWS, PART), OPERAND, assert_trivial=True)
        sums = warpgroup_mma(weights, values.index(t & 1).slice(part * PART, PART), done, is_async=True)
        if part + 2 < PARTS:
            now = then
            then = begin_products(q, ring, u, part + 2, acc, PART)
        else:
            now = then
        if part % 2 == 0:
            left = acc
        else:
            right = acc
        if AHEAD and part == 0:
            _barrier()  # all warps are done with the block before, whose place this one takes
            store_values(values, bytes_of_v, t + 1, SHIFTED_V, BLOCK_D, ROW)
    return left, right, sums, weights, parts


@gluon.jit
def block_at(t, count):
    """Of both passes: t - count in the second; beyond it, the last."""
    return gl.minimum(gl.where(t < count, t, t - count), count - 1)


@gluon.jit
def begin_copy(ring, place, step, t, count):
    """Of block t of both passes into a ring."""
    _begin_async_copy(ring.index(t & (RING - 1)), place + block_at(t, count) * KEYS * step)


@gluon.jit
def store_values(values, bytes_of_v, t, SHIFTED_V: gl.constexpr, BLOCK_D: gl.constexpr, ROW: gl.constexpr):
    """v of block t as float16, or 128 more in steps of 2^-24; a thread reads what it copied."""
    found = bytes_of_v.index(t & 1).load(ROW)
    halves = gl.inline_asm_elementwise(
        _STEPS_OF_BYTES if SHIFTED_V else _HALVES_OF_BYTES, "=r,=r,r", [found],
        dtype=gl.float16, is_pure=True, pack=4,
    )  # fmt: skip
    values.index(t & 1).store(halves)


@gluon.jit
def attention_pipelined(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nq, nk, d, heads, sharing, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    CAUSAL: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, LONG: gl.constexpr,
    SHIFTED_V: gl.constexpr, FLUSH: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr,
    PART: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """A block of queries on whole blocks of keys; causal ones on as many as they see any of."""
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [512 // BLOCK_D, BLOCK_D // 16], [WARPS, 1], [1, 0])
    g = gl.program_id(0) // blocks
    batch, h = (g // heads).to(gl.int64), (g % heads).to(gl.int64)
    table_ptr += batch * t0 + h * t1
    B, S, D = gl.load(table_ptr), gl.load(table_ptr + 1), gl.load(table_ptr + 2)
    S2, D2, f = gl.load(table_ptr + 3), gl.load(table_ptr + 4), gl.load(table_ptr + 5)
    multiplier, shift, v_scale = gl.load(table_ptr + 6), gl.load(table_ptr + 7), gl.load(table_ptr + 10)
    if SCORES == BYTES:
        B, S, S2 = B << (8 - f), S << (8 - f), S2 << (8 - f)
    factor = multiplier.to(gl.float32) * ((127 - shift) << 23).to(gl.float32, bitcast=True)

    first = (gl.program_id(0) % blocks) * ROWS
    count = nk // KEYS
    full = count
    if CAUSAL:  # the last queries, which take longest, first
        first = nq - ROWS - first
        count = (first + ROWS + nk - nq + (KEYS - 1)) // KEYS
        full = count - 1  # the last block is seen in part
    row = gl.arange(0, KEYS, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    k_place = k_ptr + batch * k0 + (h // sharing) * k1 + row[:, None] * k2 + column[None, :]
    v_place = v_ptr + batch * v0 + (h // sharing) * v1 + row[:, None] * v2 + column[None, :]
    ring = gl.allocate_shared_memory(gl.int8, [RING, KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2))
    begin_copy(ring, k_place, k2, 0, count)
    async_copy.commit_group()
    begin_copy(ring, k_place, k2, 1, count)
    async_copy.commit_group()
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, ROW))
    q = gl.load(q_ptr + batch * q0 + h * q1 + query[:, None] * q2 + column[None, :])
    q = gl.convert_layout(q, gl.DotOperandLayout(0, PRODUCTS, 4))
    limit = first + gl.arange(0, ROWS, gl.SliceLayout(1, PRODUCTS)) + (1 + nk - nq)

    # The first pass: the largest product gives the largest logit, for the factor is positive.
    left = gl.zeros([ROWS, PART], gl.int32, PRODUCTS)
    right = gl.zeros([ROWS, PART], gl.int32, PRODUCTS)
    maximum = maxima(gl.full([ROWS, PART], LOWEST, gl.int32, PRODUCTS), ROWS, PART)
    for t in range(full):
        _barrier()
        begin_copy(ring, k_place, k2, t + 2, count)
        async_copy.commit_group()
        async_copy.wait_group(2)
        _barrier()
        fence_async_shared()
        left, right, maximum = maxima_of_block(
            q, ring, t, left, right, maximum, limit, 0, False, ROWS, PART, PRODUCTS
        )
    bytes_of_v = gl.allocate_shared_memory(
        gl.int8, [2, KEYS, BLOCK_D], gl.SwizzledSharedLayout(16, 1, 1, [1, 0])
    )
    _barrier()
    if CAUSAL:
        begin_copy(ring, k_place, k2, count + 1, count)
    _begin_async_copy(bytes_of_v.index(0), v_place)
    async_copy.commit_group()
    _begin_async_copy(bytes_of_v.index(1), v_place + block_at(count + 1, count) * KEYS * v2)
    async_copy.commit_group()
    if CAUSAL:
        async_copy.wait_group(3)
        _barrier()
        fence_async_shared()
        left, right, maximum = maxima_of_block(
            q, ring, full, left, right, maximum, limit, full * KEYS, True, ROWS, PART, PRODUCTS
        )

    # Distances of this row's largest logit (docs/spec.md).
    largest = gl.inline_asm_elementwise(
        _ROUNDED_HALF_UP, "=r,f,f", [gl.max(maximum, axis=1).to(gl.float32), factor],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    largest = gl.minimum(gl.maximum(largest + ZERO, LEAST), LARGEST)
    reach = gl.minimum(largest - LEAST, D)
    near = gl.minimum(largest - LEAST, D2)
    least = B - S * reach
    if SCORES != ONE_LINE:
        least -= S2 * near
    line = (
        beside_pairs(((reach - largest) & 0xFFFF) * 0x10001, ROWS, PART, PRODUCTS),
        beside_pairs(reach * 0x10001, ROWS, PART, PRODUCTS),
        beside_pairs(((near - largest) & 0xFFFF) * 0x10001, ROWS, PART, PRODUCTS),
        beside_pairs(near * 0x10001, ROWS, PART, PRODUCTS),
        S, S2, beside_pairs(least * 0x10001, ROWS, PART, PRODUCTS),
    )  # fmt: skip

    # The second pass. Sums that float32 may not hold exactly are added up in shared memory.
    values = gl.allocate_shared_memory(
        gl.float16, [2, KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    )
    async_copy.wait_group(1)
    store_values(values, bytes_of_v, 0, SHIFTED_V, BLOCK_D, ROW)
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    weights = gl.zeros([ROWS, PART], gl.float16, OPERAND)
    none, other = even_and_odd(gl.zeros([ROWS, PART], gl.int32, PRODUCTS), ROWS, PART)
    parts = sums_of(none, SUMS, ROWS, PART)
    chunk = gl.maximum(full, 1)
    if LONG:
        chunk = FLUSH
        far = gl.allocate_shared_memory(gl.int32, [ROWS, BLOCK_D], gl.SwizzledSharedLayout(4, 1, 1, [1, 0]))
        far.store(gl.zeros([ROWS, BLOCK_D], gl.int32, SUM))
    for start in range(0, full, chunk):
        for t in range(start, gl.minimum(start + chunk, full)):
            _barrier()
            begin_copy(ring, k_place, k2, count + t + 2, count)
            _begin_async_copy(bytes_of_v.index(t & 1), v_place + block_at(count + t + 2, count) * KEYS * v2)
            async_copy.commit_group()
            async_copy.wait_group(1)
            _barrier()
            fence_async_shared()
            left, right, sums, weights, parts = scores_of_block(
                q, ring, values, bytes_of_v, t, count + t, left, right, sums, weights, parts, factor, line,
                limit, 0, False, True, SCORES, SUMS, SHIFTED_V, ROWS, PART, BLOCK_D, PRODUCTS, OPERAND, ROW,
            )  # fmt: skip
        if LONG:
            done, weights = warpgroup_mma_wait(0, deps=[sums, weights])
            far.store(far.load(SUM) + (done / STEP).to(gl.int32))
            sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    if CAUSAL:
        async_copy.wait_group(0)
        _barrier()
        fence_async_shared()
        left, right, sums, weights, parts = scores_of_block(
            q, ring, values, bytes_of_v, full, count + full, left, right, sums, weights, parts, factor, line,
            limit, full * KEYS, True, False, SCORES, SUMS, SHIFTED_V, ROWS, PART, BLOCK_D, PRODUCTS, OPERAND,
            ROW,
        )  # fmt: skip
    async_copy.wait_group(0)  # before anything else takes their place
    total, weights = warpgroup_mma_wait(0, deps=[sums, weights])

    if SUMS == PACKED:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    Z = gl.maximum(gl.convert_layout(gl.sum(parts, axis=1), gl.SliceLayout(1, SUM)), 1)
    if LONG:
        N = far.load(SUM) + (total / STEP).to(gl.int32)
        below = Z.to(gl.float32)[:, None] + gl.zeros([ROWS, BLOCK_D], gl.float32, SUM)
        result = gl.div_rn(N.to(gl.float32), below)
    else:  # as `divided` in `steps.py`
        Z = Z.to(gl.float32) * STEP
        if SHIFTED_V:
            Z = Z * STEP
            total = total - 128 * Z[:, None]
        upper = gl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [Z], dtype=gl.float32, is_pure=True, pack=1
        )
        lower = gl.fma(-Z, upper, gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, SUM))) * upper
        upper = upper[:, None] + gl.zeros([ROWS, BLOCK_D], gl.float32, SUM)
        result = gl.fma(total, upper, total * lower[:, None])
    result = result * v_scale.to(gl.float32, bitcast=True)
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_D, BLOCK_D // 8], [WARPS, 1], [1, 0])
    result = gl.convert_layout(result.to(out_ptr.dtype.element_ty), OUT)
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, OUT))
    gl.store(out_ptr + g.to(gl.int64) * nq * BLOCK_D + (query[:, None] * BLOCK_D + column[None, :]), result)
