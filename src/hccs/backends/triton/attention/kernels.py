"""Integer attention in Triton: a program holds a block of queries, and never an n x n matrix.

Keys that fit a program's registers as words of two logits (`attention_pairs`) are multiplied once. More keys
take two passes, the first for the maximum alone: the factor is positive, so the largest accumulator gives
the largest logit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import (
    LOWEST,
    STEP,
    ZERO,
    as_halves,
    beside_pairs,
    distances,
    logits_of_pairs,
    maxima,
    maximum_of_pairs,
    ones_below,
    probabilities_of_pairs,
    round_half_up,
    scores_of_pairs,
    sum_of_pairs,
    sums_of_pairs,
    times_values,
)

NO_MODE, U8_DIV, U8_CLB = range(3)
FLOATS, INT8, PAIR = range(3)


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
def limits_of(
    valid_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """How many of the first keys each query may see; a mask chooses among them."""
    limit = tl.zeros_like(query) + nk
    if CAUSAL:
        limit = tl.minimum(limit, query + (1 + nk - nq))
    if MASKING == 1:
        valid_ptr += (g // n1).to(tl.int64) * s0 + (g % n1).to(tl.int64) * s1
        limit = tl.minimum(limit, tl.load(valid_ptr + query * s2, mask=query < nq, other=0))
    return limit


@triton.jit
def attended(
    valid_ptr, limit, g, query, first, nq, nk, n1, s0, s1, s2,
    MASKING: tl.constexpr, HOPPER: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Ones in the halves of words whose key a query sees."""
    ones = ones_below(limit, first, ROWS, KEYS, HOPPER)
    if MASKING >= 2:
        valid_ptr += (g // n1).to(tl.int64) * s0 + (g % n1).to(tl.int64) * s1
        word = first // 2 + tl.arange(0, KEYS // 2)
        present = (word < (nk + 1) // 2)[None, :]
        if MASKING == 2:
            place = valid_ptr + (query[:, None] * s2 + word[None, :])
            chosen = tl.load(place, mask=present & (query < nq)[:, None], other=0)
        else:  # the same for all queries of a head
            chosen = tl.load(valid_ptr + word[None, :], mask=present, other=0)
        ones = ones & chosen
    return ones


@triton.jit
def divided(sums, Z, HOPPER: tl.constexpr):
    """N / Z correctly rounded.

    N times a reciprocal in two parts is off by 2^-20 of a last place before it is rounded. N / Z is no tie of
    two float32, as N < 2^24, and lies 2^-16 of a last place or more from one, as Z < 2^15.
    """
    if HOPPER:
        upper = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [Z], dtype=tl.float32, is_pure=True, pack=1
        )
        lower = tl.fma(-Z, upper, tl.full(Z.shape, 1.0, tl.float32)) * upper
        quotient = tl.fma(sums, tl.broadcast_to(upper[:, None], sums.shape), sums * lower[:, None])
    else:
        quotient = tl.div_rn(sums, tl.broadcast_to(Z[:, None], sums.shape))
    return quotient


@triton.jit
def parameters_of(table_ptr):
    """B, S, D, then the five of `Requant.packed`."""
    upper = (tl.load(table_ptr), tl.load(table_ptr + 1), tl.load(table_ptr + 2), tl.load(table_ptr + 3))
    lower = (tl.load(table_ptr + 4), tl.load(table_ptr + 5), tl.load(table_ptr + 6), tl.load(table_ptr + 7))
    return upper + lower


@triton.jit
def output_of(
    sums, Z, multiplier, shift, v_scale, dtype: tl.constexpr, OUT: tl.constexpr, HOPPER: tl.constexpr
):  # fmt: skip
    """What docs/spec.md makes of (N, Z); `sums` is N in steps of 2^-24."""
    if OUT == 2:
        result = sums / STEP
    elif OUT == 1:
        Z = tl.maximum(Z, 1)
        k = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        multiplier = (multiplier.to(tl.int64) << k) // Z
        result = round_half_up(sums / STEP, multiplier[:, None], (shift + k)[:, None], HOPPER)
    else:
        result = divided(sums, tl.maximum(Z, 1).to(tl.float32) * STEP, HOPPER)
        result = result * v_scale.to(tl.float32, bitcast=True)
    return result.to(dtype)


@triton.jit
def store_sums(sum_ptr, g, query, Z, nq):
    """Z of a block of queries; only the program of the first columns writes it."""
    rows = tl.where(tl.program_id(1) == 0, nq, 0)
    tl.store(sum_ptr + g.to(tl.int64) * nq + query, Z, mask=query < rows)


@triton.jit
def store_rows(
    out_ptr, sum_ptr, multiplier, shift, v_scale, g, query, column, sums, Z, nq, d,
    FULL: tl.constexpr, OUT: tl.constexpr, HOPPER: tl.constexpr,
):  # fmt: skip
    """The output of a block of queries."""
    if OUT == 2:
        store_sums(sum_ptr, g, query, Z, nq)
    result = output_of(sums, Z, multiplier, shift, v_scale, out_ptr.dtype.element_ty, OUT, HOPPER)
    place = out_ptr + g.to(tl.int64) * nq * d + (query[:, None] * d + column[None, :])
    if FULL:
        tl.store(place, result)
    else:
        tl.store(place, result, mask=(query < nq)[:, None] & (column < d)[None, :])


@triton.jit
def on_resident_keys(
    q, keys, values, parameters, q_ptr, k_ptr, valid_ptr, g, query, q2, k2, nq, nk, d,
    n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, MODE: tl.constexpr, WIDE: tl.constexpr,
    HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """N, in steps of 2^-24, and Z of one block of queries on all keys."""
    B, S, D, multiplier, shift, _, _, _ = parameters
    limit = limits_of(valid_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    words, seen = (), ()
    largest = tl.zeros([ROWS], tl.int32)
    for j in tl.static_range(TILES):
        key = j * KEYS + tl.arange(0, KEYS)
        acc = products(q, keys[j], q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        pairs = logits_of_pairs(acc, multiplier, shift, ROWS, KEYS, HOPPER)
        if not ALL:
            ones = attended(
                valid_ptr, limit, g, query, j * KEYS, nq, nk, n1, s0, s1, s2,
                MASKING, HOPPER, ROWS, KEYS,
            )  # fmt: skip
            pairs = pairs & ones
            seen = seen + (ones,)
        largest = tl.maximum(largest, maximum_of_pairs(pairs, HOPPER))
        words = words + (pairs,)
    raised, reach, least = distances(largest, B, S, D)
    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    Z = tl.zeros([ROWS], tl.int32)
    weights = ()
    for j in tl.static_range(TILES):
        pairs = scores_of_pairs(words[j], raised[:, None], reach[:, None], least[:, None], S, HOPPER)
        if not ALL:
            pairs = pairs & seen[j]
        Z += sum_of_pairs(pairs)
        if MODE == 0:
            sums = times_values(pairs, values[j], sums, WIDE, ROWS, KEYS)
        else:
            weights = weights + (pairs,)
    if MODE != 0:
        for j in tl.static_range(TILES):
            pairs = probabilities_of_pairs(weights[j], Z, MODE == 2)
            sums = times_values(pairs, values[j], sums, WIDE, ROWS, KEYS)
        Z = tl.full([ROWS], 255, tl.int32)
    return sums, Z


@triton.jit
def block_on_resident_keys(
    q_ptr, k_ptr, keys, values, parameters, valid_ptr, out_ptr, sum_ptr, g, first, written, q2, k2, nq, nk, d,
    n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One block of queries from memory to memory."""
    query = first + tl.arange(0, ROWS)
    q = rows_of(q_ptr, query, tl.arange(0, BLOCK_D), q2, nq, d, FULL)
    sums, Z = on_resident_keys(
        q, keys, values, parameters, q_ptr, k_ptr, valid_ptr, g, query, q2, k2, nq, nk, d,
        n1, s0, s1, s2, MASKING, CAUSAL, ALL, MODE, WIDE, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS, TILES,
    )  # fmt: skip
    _, _, _, _, _, multiplier, shift, v_scale = parameters
    store_rows(
        out_ptr, sum_ptr, multiplier, shift, v_scale, g, query, written, sums, Z, nq, d, FULL, OUT, HOPPER
    )


@triton.jit
def attention_resident(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, out_ptr, sum_ptr, nq, nk, d, heads, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr, REPEAT: tl.constexpr, LOOP: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """TILES * KEYS keys stay in a program, which reads them once for REPEAT blocks of queries.

    A program stays with one head: what SHARED says all batches have in common, its parameters, is read once.
    """
    column = tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    h = tl.program_id(0) % heads
    table_ptr += h * t1
    q_ptr += h.to(tl.int64) * q1
    k_ptr += h.to(tl.int64) * k1
    v_ptr += h.to(tl.int64) * v1
    parameters = parameters_of(table_ptr)
    for task in tl.range(tl.program_id(0) // heads, tasks, tl.num_programs(0) // heads):
        batch = (task // blocks).to(tl.int64)
        first = (task % blocks) * (REPEAT * ROWS)
        q_head, k_head, v_head = q_ptr + batch * q0, k_ptr + batch * k0, v_ptr + batch * v0
        if not SHARED:
            parameters = parameters_of(table_ptr + batch * t0)
        keys, values = (), ()
        for j in tl.static_range(TILES):
            key = j * KEYS + tl.arange(0, KEYS)
            keys = keys + (rows_of(k_head, key, column, k2, nk, d, FULL),)
            values = values + (as_halves(rows_of(v_head, key, written, v2, nk, d, FULL), HOPPER),)
        g = (task // blocks) * heads + h
        if LOOP:
            for i in tl.range(0, REPEAT):
                block_on_resident_keys(
                    q_head, k_head, keys, values, parameters, valid_ptr, out_ptr, sum_ptr, g,
                    first + i * ROWS, written, q2, k2, nq, nk, d, n1, s0, s1, s2, MASKING, CAUSAL,
                    ALL, FULL, MODE, OUT, WIDE, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS, TILES,
                )  # fmt: skip
        else:
            for i in tl.static_range(REPEAT):
                block_on_resident_keys(
                    q_head, k_head, keys, values, parameters, valid_ptr, out_ptr, sum_ptr, g,
                    first + i * ROWS, written, q2, k2, nq, nk, d, n1, s0, s1, s2, MASKING, CAUSAL,
                    ALL, FULL, MODE, OUT, WIDE, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS, TILES,
                )  # fmt: skip


@triton.jit
def scores_of_block(
    q, q_ptr, k_ptr, valid_ptr, limit, raised, reach, least, S, multiplier, shift, g, query, start, q2, k2,
    nq, nk, d, n1, s0, s1, s2,
    MASKED: tl.constexpr, FULL: tl.constexpr, MASKING: tl.constexpr, HOPPER: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Of queries on the block of keys at `start`; the logits themselves where `raised` is None."""
    key = start + tl.arange(0, KEYS)
    k = rows_of(k_ptr, key, tl.arange(0, BLOCK_D), k2, nk, d, FULL)
    acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
    pairs = logits_of_pairs(acc, multiplier, shift, ROWS, KEYS, HOPPER)
    if raised is not None:
        pairs = scores_of_pairs(pairs, raised, reach, least, S, HOPPER)
    if MASKED:
        pairs = pairs & attended(
            valid_ptr, limit, g, query, start, nq, nk, n1, s0, s1, s2, MASKING, HOPPER, ROWS, KEYS
        )
    return pairs


@triton.jit
def attention_streamed(
    q_ptr, k_ptr, v_ptr, table_ptr, valid_ptr, out_ptr, sum_ptr, nq, nk, d, heads, blocks, tasks,
    q0, q1, q2, k0, k1, k2, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, FULL: tl.constexpr, MODE: tl.constexpr,
    OUT: tl.constexpr, WIDE: tl.constexpr, HOPPER: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Two passes over blocks of keys: the maximum, then scores and product; probabilities need one more.

    Each pass takes first the blocks that all its queries see in full, then those that need masking.
    """
    g = tl.program_id(0) // blocks
    batch, h = (g // heads).to(tl.int64), (g % heads).to(tl.int64)
    B, S, D, multiplier, shift, out_multiplier, out_shift, v_scale = parameters_of(
        table_ptr + batch * t0 + h * t1
    )
    q_ptr += batch * q0 + h * q1
    k_ptr += batch * k0 + h * k1
    v_ptr += batch * v0 + h * v1
    query, column = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    written = tl.program_id(1) * BLOCK_D + column
    q = rows_of(q_ptr, query, column, q2, nq, d, FULL)
    limit = limits_of(valid_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING, CAUSAL)
    whole, stop = nk, nk
    if not ALL:
        stop = tl.max(tl.where(query < nq, limit, 0), axis=0)
        whole = tl.min(tl.where(query < nq, limit, nk), axis=0) // KEYS * KEYS
    if MASKING >= 2:
        whole = 0

    maximum = tl.full([ROWS, 8], LOWEST, tl.int32)
    for start in tl.range(0, whole, KEYS):
        key = start + tl.arange(0, KEYS)
        k = rows_of(k_ptr, key, column, k2, nk, d, FULL)
        acc = products(q, k, q_ptr, k_ptr, query, key, q2, k2, nq, nk, d, CHUNKS, BLOCK_D)
        maximum = tl.maximum(maximum, maxima(acc, ROWS, KEYS))
    largest = round_half_up(tl.max(maximum, axis=1).to(tl.float32), multiplier, shift, HOPPER) + ZERO
    if not ALL:
        for start in tl.range(whole, stop, KEYS):
            pairs = scores_of_block(
                q, q_ptr, k_ptr, valid_ptr, limit, None, None, None, S, multiplier, shift, g, query,
                start, q2, k2, nq, nk, d, n1, s0, s1, s2,
                True, FULL, MASKING, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
            largest = tl.maximum(largest, maximum_of_pairs(pairs, HOPPER))
    raised, reach, least = distances(largest, B, S, D)
    raised, reach = beside_pairs(raised, ROWS, KEYS), beside_pairs(reach, ROWS, KEYS)
    least = beside_pairs(least, ROWS, KEYS)

    parts = tl.zeros([ROWS, 4], tl.int32)
    if MODE != 0:
        for start in tl.range(0, stop, KEYS):
            pairs = scores_of_block(
                q, q_ptr, k_ptr, valid_ptr, limit, raised, reach, least, S, multiplier, shift, g, query,
                start, q2, k2, nq, nk, d, n1, s0, s1, s2,
                not ALL, FULL, MASKING, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
            parts += sums_of_pairs(pairs, ROWS, KEYS)
    Z = sum_of_pairs(parts)

    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for MASKED in tl.static_range(1 if ALL else 2):
        for start in tl.range(whole if MASKED else 0, stop if MASKED else whole, KEYS):
            v = as_halves(rows_of(v_ptr, start + tl.arange(0, KEYS), written, v2, nk, d, FULL), HOPPER)
            pairs = scores_of_block(
                q, q_ptr, k_ptr, valid_ptr, limit, raised, reach, least, S, multiplier, shift, g, query,
                start, q2, k2, nq, nk, d, n1, s0, s1, s2,
                MASKED, FULL, MASKING, HOPPER, CHUNKS, BLOCK_D, ROWS, KEYS,
            )  # fmt: skip
            if MODE != 0:
                pairs = probabilities_of_pairs(pairs, Z, MODE == 2)
            else:
                parts += sums_of_pairs(pairs, ROWS, KEYS)
            sums = times_values(pairs, v, sums, WIDE, ROWS, KEYS)
    if MODE != 0:
        Z = tl.full([ROWS], 255, tl.int32)
    else:
        Z = sum_of_pairs(parts)
    store_rows(
        out_ptr, sum_ptr, out_multiplier, out_shift, v_scale, g, query, written, sums, Z, nq, d,
        FULL, OUT, HOPPER,
    )  # fmt: skip
