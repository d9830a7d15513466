"""Integer attention for CUDA tensors, in Triton: a program holds a block of queries and never an n x n matrix.

q.k runs on the int8 tensor cores and stays in integers until its row's maximum is known: the factor is
positive, so the
maximum of the accumulators is the accumulator of the maximum. Keys that fit one block are read once; more
keys take two
passes, the first for the maximum alone.

What limits the speed is the work per logit, so two of them travel in one register from the requantisation
on, as 16-bit
integers. The bits of an integer up to 2047 are also a float16, 2^-24 times as large: the words of scores are
an
operand of the float16 tensor cores as they are, and the sums, below 2^22 steps of 2^-24, are exact in
float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.kernels.triton import reciprocal, valid_columns

LOWEST = tl.constexpr(-(2**31))
# Scores beyond these bits would leave the range in which a float16's bits are a multiple of 2^-24.
SCORE_BITS = tl.constexpr(11)
STEP = tl.constexpr(2.0**-24)
NO_MODE, U8_DIV, U8_CLB = range(3)
FLOATS, INT8, PAIR = range(3)

# Two logits to two scores, in one register. 2^23 * 1.5 + acc has the bits of acc in its mantissa, so one
# integer and one
# float addition replace the conversion. The multiply-add rounds down and lands between 1024 and 2048, where
# a float16
# has no fraction bits: conversion towards zero is the floor, and its bits are 0x6400 + t. Smaller results
# mean t < 0
# and become 0 when 0x6400 is subtracted; t <= D' saturates the other side. Last, s = S*t + (B - S*D') in
# both halves.
_PAIR_OF_SCORES = tl.constexpr("""{
    .reg .f32 x, y;
    .reg .b32 t, u;
    add.s32 t, $1, 0x4B400000;
    add.s32 u, $2, 0x4B400000;
    mov.b32 x, t;
    mov.b32 y, u;
    sub.rn.f32 x, x, 0f4B400000;
    sub.rn.f32 y, y, 0f4B400000;
    fma.rm.f32 x, x, $3, $4;
    fma.rm.f32 y, y, $3, $4;
    cvt.rz.relu.f16x2.f32 t, y, x;
    mov.b32 u, 0x9C009C00;
    add.s16x2 t, t, u;
    min.relu.s16x2 t, t, $5;
    mad.lo.s32 $0, t, $6, $7;
}""")
_PAIR_CONVERT = tl.constexpr("""{
    .reg .f32 x, y;
    .reg .b32 t, u;
    cvt.rn.f32.s32 x, $1;
    cvt.rn.f32.s32 y, $2;
    fma.rm.f32 x, x, $3, $4;
    fma.rm.f32 y, y, $3, $4;
    cvt.rz.relu.f16x2.f32 t, y, x;
    mov.b32 u, 0x9C009C00;
    add.s16x2 t, t, u;
    min.relu.s16x2 t, t, $5;
    mad.lo.s32 $0, t, $6, $7;
}""")
CONVERT: tl.constexpr = tl.constexpr(False)
# Four int8 to float16: a byte under the exponent of 1024 is 1024 + byte.
_HALVES_OF_BYTES = tl.constexpr("""{
    .reg .b32 x, y, z;
    xor.b32 x, $2, 0x80808080;
    prmt.b32 y, x, 0x64646464, 0x4140;
    prmt.b32 z, x, 0x64646464, 0x4342;
    mov.b32 x, 0x64806480;
    sub.rn.f16x2 $0, y, x;
    sub.rn.f16x2 $1, z, x;
}""")
_ROUNDED_HALF_UP = tl.constexpr("""{
    .reg .f32 x;
    fma.rm.f32 x, $1, $2, 0f3F000000;
    cvt.rmi.f32.f32 x, x;
    min.f32 x, x, 0f42FE0000;
    max.f32 $0, x, 0fC3000000;
}""")


@triton.jit
def power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def round_half_up(value, multiplier, shift, HOPPER: tl.constexpr):
    """clamp(floor(value * multiplier / 2^shift + 1/2), -128, 127) of integers in float32, in float32."""
    if HOPPER:
        factor = multiplier.to(tl.float32) * power_of_two(-shift)
        rounded = tl.inline_asm_elementwise(
            _ROUNDED_HALF_UP, "=f,f,f", [value, factor], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        wide = value.to(tl.int64) * multiplier + (tl.full([], 1, tl.int64) << (shift - 1))
        rounded = tl.minimum(tl.maximum(wide >> shift, -128), 127).to(tl.float32)
    return rounded


@triton.jit
def as_halves(v, HOPPER: tl.constexpr):
    if HOPPER:
        v = tl.inline_asm_elementwise(
            _HALVES_OF_BYTES, "=r,=r,r", [v], dtype=tl.float16, is_pure=True, pack=4
        )
    return v.to(tl.float16)


@triton.jit
def even_and_odd(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns 0, 2, ... and 1, 3, ...: a thread of an accumulator holds both, so nothing moves."""
    return tl.split(tl.reshape(x, [ROWS, COLUMNS // 2, 2]))


@triton.jit
def beside_pairs(row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One value per row in the layout of `even_and_odd`, which a plain broadcast would not have."""
    value, _ = even_and_odd(tl.broadcast_to(row[:, None], [ROWS, COLUMNS]), ROWS, COLUMNS)
    return value


@triton.jit
def row_of_head(table_ptr, maximum, HOPPER: tl.constexpr):
    """What a row needs to score its keys: m', D' (docs/spec.md, saturation) and the least score."""
    B, S, D = tl.load(table_ptr), tl.load(table_ptr + 1), tl.load(table_ptr + 2)
    multiplier, shift = tl.load(table_ptr + 3), tl.load(table_ptr + 4)
    m = round_half_up(maximum.to(tl.float32), multiplier, shift, HOPPER).to(tl.int32)
    limit = tl.minimum(m + 128, D)
    return m, limit, B - S * limit


@triton.jit
def scores_of_pairs(
    acc, valid, table_ptr, m, limit, least,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ALL: tl.constexpr, HOPPER: tl.constexpr,
):  # fmt: skip
    """Scores (eq. 2, 3) of two neighbouring keys per int32, the even one in the low half."""
    S, multiplier, shift = tl.load(table_ptr + 1), tl.load(table_ptr + 3), tl.load(table_ptr + 4)
    even, odd = even_and_odd(acc, ROWS, COLUMNS)
    if HOPPER:
        factor = multiplier.to(tl.float32) * power_of_two(-shift)
        offset = beside_pairs((limit - m).to(tl.float32) + 1024.5, ROWS, COLUMNS)
        limits = beside_pairs(limit * 0x10001, ROWS, COLUMNS)
        leasts = beside_pairs(least * 0x10001, ROWS, COLUMNS)
        pairs = tl.inline_asm_elementwise(
            _PAIR_CONVERT if CONVERT else _PAIR_OF_SCORES, "=r,r,r,f,f,r,r,r", [even, odd, factor, offset, limits, S, leasts],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        half = tl.full([], 1, tl.int64) << (shift - 1)
        raised = beside_pairs(limit - m, ROWS, COLUMNS)
        limits = beside_pairs(limit, ROWS, COLUMNS)
        leasts = beside_pairs(least, ROWS, COLUMNS)
        low = ((even.to(tl.int64) * multiplier + half) >> shift) + raised
        high = ((odd.to(tl.int64) * multiplier + half) >> shift) + raised
        low = leasts + S * tl.minimum(tl.maximum(low, 0), limits).to(tl.int32)
        high = leasts + S * tl.minimum(tl.maximum(high, 0), limits).to(tl.int32)
        pairs = low | (high << 16)
    if not ALL:
        even, odd = even_and_odd(valid, ROWS, COLUMNS)
        pairs = tl.where(even, pairs & 0xFFFF, 0) | tl.where(odd, pairs & -65536, 0)
    return pairs


@triton.jit
def sum_of_pairs(pairs):
    """Per row. Neither half overflows: Z <= 32767."""
    total = tl.sum(pairs, axis=1)
    return (total & 0xFFFF) + (total >> 16)


@triton.jit
def probabilities_of_pairs(pairs, Z, IS_CLB: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """p_hat of the uint8 modes (eq. 7, 8, 9), again two to a word."""
    rho = reciprocal(tl.maximum(Z, 1).to(tl.float32), True, IS_CLB).to(tl.int32)
    rho = beside_pairs(rho, ROWS, COLUMNS)
    low = tl.minimum(((pairs & 0xFFFF) * rho) >> 15, 255)
    high = tl.minimum(((pairs >> 16) * rho) >> 15, 255)
    return low | (high << 16)


@triton.jit
def times_values(pairs, v, sums, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """sums + (words of scores as float16) @ v, in steps of 2^-24; two planes of bits where one would not do."""
    if WIDE:
        upper = as_operand((pairs >> 10) & 0x3F003F, ROWS, COLUMNS)
        sums += 1024.0 * tl.dot(upper, v, out_dtype=tl.float32)
        pairs = pairs & 0x03FF03FF
    return tl.dot(as_operand(pairs, ROWS, COLUMNS), v, sums, out_dtype=tl.float32)


@triton.jit
def as_operand(pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    low = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.join(low, high), [ROWS, COLUMNS])


@triton.jit
def rows_of(ptr, row, column, stride, rows, columns, FULL: tl.constexpr):
    """A tile of int8 rows, zeros outside."""
    place = ptr + (row[:, None] * stride + column[None, :])
    if FULL:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0)
    return tile


@triton.jit
def products(
    q, k, q_ptr, k_ptr, query, key, q_stride, k_stride, nq, nk, d,
    CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """q.k of a tile; heads wider than the tile are summed chunk by chunk."""
    acc = tl.dot(q, tl.trans(k), out_dtype=tl.int32)
    for chunk in tl.static_range(1, CHUNKS):
        column = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
        more = rows_of(q_ptr, query, column, q_stride, nq, d, False)
        k = rows_of(k_ptr, key, column, k_stride, nk, d, False)
        acc = tl.dot(more, tl.trans(k), acc, out_dtype=tl.int32)
    return acc


@triton.jit
def attended(
    valid_ptr, g, query, key, nq, nk, n1, n2, s0, s1, s2, s3,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Which keys of a tile each query sees."""
    inside = (query < nq)[:, None] & (key < nk)[None, :]
    if CAUSAL:
        inside = inside & (key[None, :] <= query[:, None] + (nk - nq))
    return valid_columns(valid_ptr, g * nq + query, key, inside, n1, n2, s0, s1, s2, s3, MASKING)


@triton.jit
def store_rows(
    out_ptr, sum_ptr, table_ptr, g, query, column, sums, Z, nq, d,
    FULL: tl.constexpr, OUT: tl.constexpr, HOPPER: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The output that docs/spec.md makes of (N, Z); `sums` is N in steps of 2^-24."""
    first = g.to(tl.int64) * nq
    place = out_ptr + first * d + (query[:, None] * d + column[None, :])
    inside = (query < nq)[:, None] & (column < d)[None, :]
    if OUT == 2:
        result = (sums / STEP).to(tl.int32)
        tl.store(sum_ptr + first + query, Z, mask=(query < nq) & (tl.min(column, axis=0) == 0))
    elif OUT == 1:
        Z = tl.maximum(Z, 1)
        k = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        multiplier = (tl.load(table_ptr + 5).to(tl.int64) << k) // Z
        shift = tl.load(table_ptr + 6) + k
        N = sums / STEP
        result = round_half_up(N, multiplier[:, None], shift[:, None], HOPPER).to(tl.int8)
    else:
        v_scale = tl.load(table_ptr + 7).to(tl.float32, bitcast=True)
        Z = tl.maximum(Z, 1).to(tl.float32) * STEP
        quotient = divided(sums, Z, ROWS, BLOCK_D, HOPPER)
        result = (quotient * v_scale).to(out_ptr.dtype.element_ty)
    if FULL:
        tl.store(place, result)
    else:
        tl.store(place, result, mask=inside)


@triton.jit
def divided(sums, Z, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, HOPPER: tl.constexpr):
    """N / Z correctly rounded. The corrected quotient errs by 2^-22 of a last place before its rounding; N / Z
    is no
    tie of two float32, as N < 2^24, and lies 2^-16 of a last place or more from one, as Z < 2^15."""
    Z = tl.broadcast_to(Z[:, None], [ROWS, BLOCK_D])
    if HOPPER:
        y = 1.0 / Z
        quotient = sums * y
        quotient = tl.fma(tl.fma(quotient, -Z, sums), y, quotient)
    else:
        quotient = tl.div_rn(sums, Z)
    return quotient


@triton.jit
def attention_one_block(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, out_ptr, sum_ptr, nq, nk, d, heads, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, n2, s0, s1, s2, s3,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """All keys in one block: a program reads them once for REPEAT blocks of queries."""
    key, column = tl.arange(0, KEYS), tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    for task in tl.range(tl.program_id(0), tasks, tl.num_programs(0)):
        g = task // blocks
        first = (task % blocks) * (ROWS * REPEAT)
        batch, h = (g // heads).to(tl.int64), (g % heads).to(tl.int64)
        head_ptr = table_ptr + batch * t0 + h * t1
        q_head, k_head = q_ptr + batch * q0 + h * q1, k_ptr + batch * k0 + h * k1
        k = rows_of(k_head, key, column, k2, nk, d, FULL)
        v = rows_of(v_ptr + batch * v0 + h * v1, key, written, v2, nk, d, FULL)
        v = as_halves(v, HOPPER)
        for i in tl.static_range(REPEAT):
            query = first + i * ROWS + tl.arange(0, ROWS)
            q = rows_of(q_head, query, column, q2, nq, d, FULL)
            acc = products(q, k, q_head, k_head, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
            if ALL:
                valid = acc
                maximum = tl.max(acc, axis=1)
            else:
                valid = attended(valid_ptr, g, query, key, nq, nk, n1, n2, s0, s1, s2, s3, MASKING, CAUSAL)
                maximum = tl.max(tl.where(valid, acc, LOWEST), axis=1)
            m, limit, least = row_of_head(head_ptr, maximum, HOPPER)
            pairs = scores_of_pairs(acc, valid, head_ptr, m, limit, least, ROWS, KEYS, ALL, HOPPER)
            Z = sum_of_pairs(pairs)
            if MODE != 0:
                pairs = probabilities_of_pairs(pairs, Z, MODE == 2, ROWS, KEYS)
                Z = tl.full([ROWS], 255, tl.int32)
            sums = times_values(pairs, v, tl.zeros([ROWS, BLOCK_D], tl.float32), WIDE, ROWS, KEYS)
            store_rows(
                out_ptr, sum_ptr, head_ptr, g, query, written, sums, Z, nq, d,
                FULL, OUT, HOPPER, ROWS, BLOCK_D,
            )  # fmt: skip


@triton.jit
def attention_many_blocks(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, out_ptr, sum_ptr, nq, nk, d, heads, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, n2, s0, s1, s2, s3,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Two passes over blocks of keys: the maximum, then scores and product; probabilities take a third for Z."""
    g = tl.program_id(0) // blocks
    batch, h = (g // heads).to(tl.int64), (g % heads).to(tl.int64)
    table_ptr += batch * t0 + h * t1
    q_ptr += batch * q0 + h * q1
    k_ptr += batch * k0 + h * k1
    v_ptr += batch * v0 + h * v1
    query, column = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    q = rows_of(q_ptr, query, column, q2, nq, d, FULL)
    stop = nk
    if CAUSAL:
        stop = tl.minimum(nk, tl.max(query, axis=0) + 1 + nk - nq)

    maximum = tl.full([ROWS], LOWEST, tl.int32)
    for start in tl.range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k = rows_of(k_ptr, key, column, k2, nk, d, FULL)
        acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        if not ALL:
            valid = attended(valid_ptr, g, query, key, nq, nk, n1, n2, s0, s1, s2, s3, MASKING, CAUSAL)
            acc = tl.where(valid, acc, LOWEST)
        maximum = tl.maximum(maximum, tl.max(acc, axis=1))
    m, limit, least = row_of_head(table_ptr, maximum, HOPPER)

    Z = tl.zeros([ROWS], tl.int32)
    if MODE != 0:
        for start in tl.range(0, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            k = rows_of(k_ptr, key, column, k2, nk, d, FULL)
            acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
            valid = attended(valid_ptr, g, query, key, nq, nk, n1, n2, s0, s1, s2, s3, MASKING, CAUSAL)
            pairs = scores_of_pairs(acc, valid, table_ptr, m, limit, least, ROWS, KEYS, ALL, HOPPER)
            Z += sum_of_pairs(pairs)

    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total = tl.zeros([ROWS], tl.int32)
    for start in tl.range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k = rows_of(k_ptr, key, column, k2, nk, d, FULL)
        v = as_halves(rows_of(v_ptr, key, written, v2, nk, d, FULL), HOPPER)
        acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        if ALL:
            valid = acc
        else:
            valid = attended(valid_ptr, g, query, key, nq, nk, n1, n2, s0, s1, s2, s3, MASKING, CAUSAL)
        pairs = scores_of_pairs(acc, valid, table_ptr, m, limit, least, ROWS, KEYS, ALL, HOPPER)
        if MODE != 0:
            pairs = probabilities_of_pairs(pairs, Z, MODE == 2, ROWS, KEYS)
        else:
            total += sum_of_pairs(pairs)
        sums = times_values(pairs, v, sums, WIDE, ROWS, KEYS)
    if MODE != 0:
        total = tl.full([ROWS], 255, tl.int32)
    store_rows(
        out_ptr, sum_ptr, table_ptr, g, query, written, sums, total, nq, d,
        FULL, OUT, HOPPER, ROWS, BLOCK_D,
    )  # fmt: skip
