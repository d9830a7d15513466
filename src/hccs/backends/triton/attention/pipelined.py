"""Attention on many keys on Hopper: tensor cores work on one block while scores of another are computed.

The two passes of `streamed.py`, in Gluon, Triton's language beneath its own: there a product may be under way
while its program computes something else. Keys come in blocks of 128, of which either half has products of
its own: those of the second run beside the scores of the first, and the product of the first with v beside
the scores of the second. No product that is read crosses the end of a turn: ptxas would wait for each.
k reaches shared memory by asynchronous copies, v through registers, where it becomes float16.
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

KEYS = gl.constexpr(64)
"""Half a block."""
RING = gl.constexpr(2)
"""Blocks of k in shared memory: one in use and one on its way."""

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
def even_and_odd(x, ROWS: gl.constexpr):
    """Columns 0, 2, ... and 1, 3, ..., which one thread holds."""
    return gl.split(gl.reshape(x, [ROWS, KEYS // 2, 2]))


@gluon.jit
def beside_pairs(row, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """One value per row in the layout of `even_and_odd`."""
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT))
    full = row[:, None] + gl.full([ROWS, KEYS], 0, gl.int32, LAYOUT)
    value, _ = even_and_odd(full, ROWS)
    return value


@gluon.jit
def maxima(acc, ROWS: gl.constexpr):
    """Of every eighth column, those that one thread holds.

    The assembly that is not pure keeps its place before the next product, which overwrites `acc`.
    """
    found = gl.max(gl.reshape(acc, [ROWS, KEYS // 8, 8]), axis=1)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [found], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def hidden(acc, limit, first, LAYOUT: gl.constexpr):
    """The least there is in place of what a row does not see of the keys from `first` on."""
    key = first + gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT))
    return gl.where(key[None, :] < limit[:, None], acc, LOWEST)


@gluon.jit
def ones_below(limit, first, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Words of ones in the halves whose key lies below its row's limit."""
    key = gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT))
    bits, _ = even_and_odd((16 * (limit - first))[:, None] + (-16 * key)[None, :], ROWS)
    zeros = gl.inline_asm_elementwise(
        "shl.b32 $0, -1, $1;", "=r,r", [gl.maximum(bits, 0)], dtype=gl.int32, is_pure=True, pack=1
    )
    return ~zeros


@gluon.jit
def scores_of(
    acc, factor, line, SCORES: gl.constexpr, ROWS: gl.constexpr
):  # fmt: skip
    """Scores of accumulated products, two to a word (eq. 2, 3)."""
    raised, limit, near_raised, near, S, S2, least = line
    even, odd = even_and_odd(acc, ROWS)
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
            dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return pairs


@gluon.jit
def sums_of(pairs, SUMS: gl.constexpr, ROWS: gl.constexpr):
    """Of the scores that one thread holds of a row: words of two sums if PACKED, else sums."""
    if SUMS == APART:
        pairs = (pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF)
    parts = gl.sum(gl.reshape(pairs, [ROWS, KEYS // 8, 4]), axis=1)
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
def as_operand(pairs, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores as an operand of the product with v; no instruction."""
    return gl.convert_layout(halves_of(pairs, ROWS, KEYS), LAYOUT, assert_trivial=True)


@gluon.jit
def begin_products(q, ring, t, half: gl.constexpr, acc):
    """q.k of half of block t, over what `acc` held."""
    keys = ring.index(t % RING).slice(half * KEYS, KEYS)
    return warpgroup_mma(q, keys.permute((1, 0)), acc, use_acc=False, is_async=True)


@gluon.jit
def begin_copy(ring, k_place, k2, t, count):
    """Block t of both passes: that of t - count in the second; beyond it, any."""
    block = gl.minimum(gl.where(t < count, t, t - count), count - 1)
    _begin_async_copy(ring.index(t % RING), k_place + block * (2 * KEYS) * k2)
    async_copy.commit_group()


@gluon.jit
def wait_for_copy():
    """Of all blocks but the last; what was stored to shared memory is there for the products, too."""
    async_copy.wait_group(RING - 1)
    _barrier()
    fence_async_shared()


@gluon.jit
def store_values(values, t, words, SHIFTED_V: gl.constexpr, BLOCK_D: gl.constexpr):
    """v of block t as float16, or 128 more in steps of 2^-24."""
    lower, upper = gl.inline_asm_elementwise(
        _STEPS_OF_BYTES if SHIFTED_V else _HALVES_OF_BYTES, "=r,=r,r", [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    pairs = gl.reshape(gl.join(lower, upper), [2 * KEYS, BLOCK_D // 2])
    values.index(t % 2).store(halves_of(pairs, 2 * KEYS, BLOCK_D))


@gluon.jit
def attention_pipelined(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, fault_ptr, out_ptr, sum_ptr,
    nq, nk, d, heads, sharing, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    CAUSAL: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, LONG: gl.constexpr,
    SHIFTED_V: gl.constexpr, FLUSH: gl.constexpr, BLOCK_D: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """A block of queries on whole blocks of keys; causal ones on as many as they see any of."""
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 32])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_D, 16])
    ROW: gl.constexpr = gl.BlockedLayout([1, 16], [512 // BLOCK_D, BLOCK_D // 16], [WARPS, 1], [1, 0])
    WORD: gl.constexpr = gl.BlockedLayout([1, 4], [512 // BLOCK_D, BLOCK_D // 16], [WARPS, 1], [1, 0])
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
    seen = nk
    if CAUSAL:  # the last queries, which take longest, first
        first = nq - ROWS - first
        seen = first + ROWS + nk - nq
    count = (seen + (2 * KEYS - 1)) // (2 * KEYS)
    # Of the last block either half, or the first alone; causal rows see them in part.
    both = seen > (2 * count - 1) * KEYS
    row = gl.arange(0, 2 * KEYS, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    k_place = k_ptr + batch * k0 + (h // sharing) * k1 + row[:, None] * k2 + column[None, :]
    row = gl.arange(0, 2 * KEYS, gl.SliceLayout(1, WORD))
    column = gl.arange(0, BLOCK_D // 4, gl.SliceLayout(0, WORD))
    v_place = (v_ptr + batch * v0 + (h // sharing) * v1).to(gl.pointer_type(gl.int32))
    v2 = v2 // 4
    v_place = v_place + row[:, None] * v2 + column[None, :]
    ring = gl.allocate_shared_memory(
        gl.int8, [RING, 2 * KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D, 8, 2)
    )  # fmt: skip
    values = gl.allocate_shared_memory(
        gl.float16, [2, 2 * KEYS, BLOCK_D], gl.NVMMASharedLayout(BLOCK_D * 2, 16, 2)
    )  # fmt: skip
    begin_copy(ring, k_place, k2, 0, count)
    query = first + gl.arange(0, ROWS, gl.SliceLayout(1, ROW))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, ROW))
    q = gl.load(q_ptr + batch * q0 + h * q1 + query[:, None] * q2 + column[None, :])
    q = gl.convert_layout(q, gl.DotOperandLayout(0, PRODUCTS, 4))
    limit = first + gl.arange(0, ROWS, gl.SliceLayout(1, PRODUCTS)) + (1 + nk - nq)

    # The first pass: the largest product gives the largest logit, for the factor is positive.
    left = gl.zeros([ROWS, KEYS], gl.int32, PRODUCTS)
    right = gl.zeros([ROWS, KEYS], gl.int32, PRODUCTS)
    maximum = maxima(gl.full([ROWS, KEYS], LOWEST, gl.int32, PRODUCTS), ROWS)
    for t in range(count - 1):
        _barrier()
        begin_copy(ring, k_place, k2, t + 1, count)
        wait_for_copy()
        started = begin_products(q, ring, t, 0, left)
        second = begin_products(q, ring, t, 1, right)
        left = warpgroup_mma_wait(1, deps=[started])
        maximum = gl.maximum(maximum, maxima(left, ROWS))
        right = warpgroup_mma_wait(0, deps=[second])
        maximum = gl.maximum(maximum, maxima(right, ROWS))
    _barrier()
    begin_copy(ring, k_place, k2, count, count)
    wait_for_copy()
    started = begin_products(q, ring, count - 1, 0, left)
    second = begin_products(q, ring, count - 1, 1, right)
    left = warpgroup_mma_wait(1, deps=[started])
    if CAUSAL:
        maximum = gl.maximum(maximum, maxima(hidden(left, limit, (2 * count - 2) * KEYS, PRODUCTS), ROWS))
        right = warpgroup_mma_wait(0, deps=[second])
        maximum = gl.maximum(maximum, maxima(hidden(right, limit, (2 * count - 1) * KEYS, PRODUCTS), ROWS))
    else:
        maximum = gl.maximum(maximum, maxima(left, ROWS))
        right = warpgroup_mma_wait(0, deps=[second])
        if both:
            maximum = gl.maximum(maximum, maxima(right, ROWS))

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
    raised = beside_pairs(((reach - largest) & 0xFFFF) * 0x10001, ROWS, PRODUCTS)
    near_raised = beside_pairs(((near - largest) & 0xFFFF) * 0x10001, ROWS, PRODUCTS)
    reach = beside_pairs(reach * 0x10001, ROWS, PRODUCTS)
    near = beside_pairs(near * 0x10001, ROWS, PRODUCTS)
    least = beside_pairs(least * 0x10001, ROWS, PRODUCTS)

    # The second pass. The product of the second half with v runs on into the next turn.
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    line = (raised, reach, near_raised, near, S, S2, least)
    words = gl.load(v_place)
    sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    weights = gl.zeros([ROWS, KEYS], gl.float16, OPERAND)
    parts = sums_of(even_and_odd(gl.zeros([ROWS, KEYS], gl.int32, PRODUCTS), ROWS)[0], SUMS, ROWS)
    chunk = gl.maximum(count - 1, 1)
    if LONG:
        chunk = FLUSH
        far = gl.allocate_shared_memory(gl.int32, [ROWS, BLOCK_D], gl.SwizzledSharedLayout(4, 1, 1, [1, 0]))
        far.store(gl.zeros([ROWS, BLOCK_D], gl.int32, SUM))
    for start in range(0, count - 1, chunk):
        for t in range(start, gl.minimum(start + chunk, count - 1)):
            _barrier()
            begin_copy(ring, k_place, k2, count + t + 1, count)
            store_values(values, t, words, SHIFTED_V, BLOCK_D)
            wait_for_copy()
            started = begin_products(q, ring, count + t, 0, left)
            second = begin_products(q, ring, count + t, 1, right)
            left, done, weights = warpgroup_mma_wait(1, deps=[started, sums, weights])
            pairs = scores_of(left, factor, line, SCORES, ROWS)
            parts += sums_of(pairs, SUMS, ROWS)
            weights = as_operand(pairs, ROWS, OPERAND)
            sums = warpgroup_mma(weights, values.index(t % 2).slice(0, KEYS), done, is_async=True)
            words = gl.load(v_place + (t + 1) * (2 * KEYS) * v2)
            right = warpgroup_mma_wait(1, deps=[second])
            pairs = scores_of(right, factor, line, SCORES, ROWS)
            parts += sums_of(pairs, SUMS, ROWS)
            done, weights = warpgroup_mma_wait(0, deps=[sums, weights])
            weights = as_operand(pairs, ROWS, OPERAND)
            sums = warpgroup_mma(weights, values.index(t % 2).slice(KEYS, KEYS), done, is_async=True)
        if LONG:  # what float32 still holds exactly
            done, weights = warpgroup_mma_wait(0, deps=[sums, weights])
            far.store(far.load(SUM) + (done / STEP).to(gl.int32))
            sums = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
    _barrier()
    begin_copy(ring, k_place, k2, 2 * count, count)
    store_values(values, count - 1, words, SHIFTED_V, BLOCK_D)
    wait_for_copy()
    started = begin_products(q, ring, 2 * count - 1, 0, left)
    second = begin_products(q, ring, 2 * count - 1, 1, right)
    left, done, weights = warpgroup_mma_wait(1, deps=[started, sums, weights])
    pairs = scores_of(left, factor, line, SCORES, ROWS)
    if CAUSAL:
        pairs = pairs & ones_below(limit, (2 * count - 2) * KEYS, ROWS, PRODUCTS)
    parts += sums_of(pairs, SUMS, ROWS)
    weights = as_operand(pairs, ROWS, OPERAND)
    sums = warpgroup_mma(weights, values.index((count - 1) % 2).slice(0, KEYS), done, is_async=True)
    right = warpgroup_mma_wait(1, deps=[second])
    total, weights = warpgroup_mma_wait(0, deps=[sums, weights])
    if both:
        pairs = scores_of(right, factor, line, SCORES, ROWS)
        if CAUSAL:
            pairs = pairs & ones_below(limit, (2 * count - 1) * KEYS, ROWS, PRODUCTS)
        parts += sums_of(pairs, SUMS, ROWS)
        weights = as_operand(pairs, ROWS, OPERAND)
        total = warpgroup_mma(weights, values.index((count - 1) % 2).slice(KEYS, KEYS), total)

    if SUMS == PACKED:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    Z = gl.convert_layout(gl.sum(parts, axis=1), gl.SliceLayout(1, SUM))
    Z = gl.maximum(Z, 1)
    if LONG:
        N = far.load(SUM) + (total / STEP).to(gl.int32)
        result = gl.div_rn(N.to(gl.float32), Z.to(gl.float32)[:, None] + gl.zeros([ROWS, BLOCK_D], gl.float32, SUM))
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
