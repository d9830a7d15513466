"""One query on many keys: what a decoder does for every token, at the speed of memory.

A tile of the tensor cores would be wasted on one row, and its detour through shared memory is what takes the
time. So k goes from memory to a product of four bytes at a time, and v to sums of bytes, in registers. The
split over programs and the two kernels are those of `few_queries.py`, whose scratch memory this uses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import LEAST, ZERO, round_half_up
from hccs.backends.triton.attention.steps import limits_of, output_of, parameters_of
from hccs.backends.triton.codes import PAIR
from hccs.backends.triton.devices import INTERPRETED

# Triton's interpreter knows no machine instructions.
SPELLED_OUT = tl.constexpr(INTERPRETED)


# A byte, and its sign in all bytes above.
_BYTES = tl.constexpr(
    ("prmt.b32 $0, $1, 0, 0x8880;", "prmt.b32 $0, $1, 0, 0x9991;", "prmt.b32 $0, $1, 0, 0xAAA2;")
)


@triton.jit
def byte_of(words, NUMBER: tl.constexpr, HOPPER: tl.constexpr):
    """The signed byte of a word, as int32."""
    if HOPPER and not SPELLED_OUT and NUMBER < 3:
        CODE: tl.constexpr = _BYTES[NUMBER]
        byte = tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1)
    else:
        byte = (words << (24 - 8 * NUMBER)) >> 24
    return byte


@triton.jit
def four_products(a, b, HOPPER: tl.constexpr):
    """The sum of the products of four signed bytes."""
    if HOPPER and not SPELLED_OUT:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        total = byte_of(a, 0, False) * byte_of(b, 0, False) + byte_of(a, 1, False) * byte_of(b, 1, False)
        total += byte_of(a, 2, False) * byte_of(b, 2, False) + byte_of(a, 3, False) * byte_of(b, 3, False)
    return total


@triton.jit
def logits_of_one(
    q_ptr, k_ptr, table_ptr, valid_ptr, fault_ptr, scratch_ptr,
    nk, heads, splits, width, sums_at, maxima_at, totals_at, counts_at, q0, q1, k0, k1, k2, t0, t1,
    n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, HOPPER: tl.constexpr, D: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Logits [row, 2 * width] of int16 and the maximum of each split; strides of q and k count words."""
    row, split = tl.program_id(0), tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    parameters = parameters_of(table_ptr + batch * t0 + head * t1, 0)
    column = tl.arange(0, D // 4)
    q = tl.load(q_ptr + batch * q0 + head * q1 + column)[None, :]
    k_ptr += batch * k0 + head * k1
    query = tl.zeros([1], tl.int32)
    limit = limits_of(valid_ptr, fault_ptr, row, query, 1, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    limit = tl.max(limit, axis=0)
    target = scratch_ptr.to(tl.pointer_type(tl.int16)) + row.to(tl.int64) * (2 * width)
    first = split * SPLIT
    peaks = tl.zeros([KEYS], tl.int32) + LEAST
    for start in tl.range(first, tl.minimum(first + SPLIT, nk), KEYS):
        key = start + tl.arange(0, KEYS)
        place = k_ptr + key[:, None] * k2 + column[None, :]
        k = tl.load(place) if ALL else tl.load(place, mask=(key < nk)[:, None], other=0)
        acc = tl.sum(four_products(k, q, HOPPER), axis=1)
        x = round_half_up(acc.to(tl.float32), parameters[6], parameters[7], HOPPER) + ZERO
        if not ALL:
            x = tl.where(key < limit, x, 0)
        peaks = tl.maximum(peaks, x)
        tl.store(target + key, x.to(tl.int16))
    tl.store(scratch_ptr + maxima_at + row * splits + split, tl.max(peaks, axis=0))
    if split == 0:
        each = tl.arange(0, D)
        tl.store(scratch_ptr + sums_at + row * D + each, tl.zeros([D], tl.int32))
        tl.store(scratch_ptr + totals_at + row, 0)
        tl.store(scratch_ptr + counts_at + row, 0)


@triton.jit
def sums_of_one(
    v_ptr, table_ptr, scratch_ptr, out_ptr, sum_ptr,
    nk, heads, splits, width, sums_at, maxima_at, totals_at, counts_at, v0, v1, v2, t0, t1,
    ALL: tl.constexpr, OUT: tl.constexpr, SCORES: tl.constexpr, HOPPER: tl.constexpr, D: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Scores and their product with v, added to those of the other splits; the last program divides."""
    row, split = tl.program_id(0), tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    B, S, reach, S2, D2, f, _, _, multiplier, shift, v_scale = parameters_of(
        table_ptr + batch * t0 + head * t1, 0
    )
    other = tl.arange(0, SPLITS)
    found = tl.load(scratch_ptr + maxima_at + row * splits + other, mask=other < splits, other=0)
    largest = tl.max(found, axis=0)
    column = tl.arange(0, D // 4)
    v_ptr += batch * v0 + head * v1
    source = scratch_ptr.to(tl.pointer_type(tl.int16)) + row.to(tl.int64) * (2 * width)
    first = split * SPLIT
    a0 = tl.zeros([KEYS, D // 4], tl.int32)
    a1, a2, a3, totals = a0, a0, a0, tl.zeros([KEYS], tl.int32)
    for start in tl.range(first, tl.minimum(first + SPLIT, nk), KEYS):
        key = start + tl.arange(0, KEYS)
        place = v_ptr + key[:, None] * v2 + column[None, :]
        v = tl.load(place) if ALL else tl.load(place, mask=(key < nk)[:, None], other=0)
        x = tl.load(source + key).to(tl.int32)
        distance = largest - x
        s = (B - S * tl.minimum(distance, reach) - S2 * tl.minimum(distance, D2)) >> f
        if not ALL:
            s = tl.where(x != 0, s, 0)
        totals += s
        s = s[:, None]
        a0, a1 = a0 + s * byte_of(v, 0, HOPPER), a1 + s * byte_of(v, 1, HOPPER)
        a2, a3 = a2 + s * byte_of(v, 2, HOPPER), a3 + s * byte_of(v, 3, HOPPER)
    even = tl.join(tl.sum(a0, axis=0), tl.sum(a2, axis=0))
    odd = tl.join(tl.sum(a1, axis=0), tl.sum(a3, axis=0))
    N, Z = tl.reshape(tl.join(even, odd), [D]), tl.sum(totals, axis=0)
    each = tl.arange(0, D)
    sums_ptr, total_ptr = scratch_ptr + sums_at + row * D, scratch_ptr + totals_at + row
    last = True
    if SPLITS > 1:
        tl.atomic_add(sums_ptr + each, N, sem="relaxed")
        tl.atomic_add(total_ptr, Z, sem="relaxed")
        tl.debug_barrier()  # all of the program's, before it says that they are there
        last = tl.atomic_add(scratch_ptr + counts_at + row, 1, sem="acq_rel") == splits - 1
    if last:
        if SPLITS > 1:
            tl.debug_barrier()
            N = tl.load(sums_ptr + each, cache_modifier=".cg")
            Z = tl.load(total_ptr, cache_modifier=".cg")
        if OUT == PAIR:
            tl.store(sum_ptr + row, Z)
        result = output_of(
            N[None, :], tl.zeros([1], tl.int32) + Z, multiplier, shift, v_scale,
            out_ptr.dtype.element_ty, OUT, True, HOPPER,
        )  # fmt: skip
        tl.store(out_ptr + row * D + each[None, :], result)
