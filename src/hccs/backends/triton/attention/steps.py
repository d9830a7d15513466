"""Steps that the kernels of attention share: tiles of rows, products, limits, outputs, masks as bits."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import STEP, ones_below, ones_of_bits, round_half_up
from hccs.backends.triton.codes import BYTES, INT8, LENGTHS, MASK, PAIR
from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.formulas import inside_row
from hccs.backends.triton.softmax import rows_in


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
    valid_ptr, fault_ptr, g, query, nq, nk, n1, s0, s1, s2, MASKING: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """How many of the first keys each query may see; a mask chooses among them."""
    limit = tl.zeros_like(query) + nk
    if CAUSAL:
        limit = tl.minimum(limit, query + (1 + nk - nq))
    if MASKING == LENGTHS:
        valid_ptr += (g // n1).to(tl.int64) * s0 + (g % n1).to(tl.int64) * s1
        length = tl.load(valid_ptr + query * s2, mask=query < nq, other=0)
        limit = tl.minimum(limit, inside_row(length, nk, fault_ptr))
    return limit


@triton.jit
def attended(
    valid_ptr, limit, g, query, first, nq, nk, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, HOPPER: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Ones in the halves of words whose key a query sees."""
    if MASKING >= MASK:
        valid_ptr += (g // n1).to(tl.int64) * s0 + (g % n1).to(tl.int64) * s1
        word = first // 128 * 4 + tl.arange(0, 4)
        there = word // 4 * 128 < nk  # a program may have room for more blocks than there are words
        if MASKING == MASK:
            place = valid_ptr + (query[:, None] * s2 + word[None, :])
            bits = tl.load(place, mask=(query < nq)[:, None] & there[None, :], other=0)
            ones = ones_of_bits(bits, first, ROWS, KEYS, HOPPER)
        else:  # the same for all queries of a head
            bits = tl.load(valid_ptr + word, mask=there, other=0)
            ones = ones_of_bits(bits[None, :], first, 1, KEYS, HOPPER)
        if CAUSAL:
            ones = ones & ones_below(limit, first, ROWS, KEYS, HOPPER)
    else:
        ones = ones_below(limit, first, ROWS, KEYS, HOPPER)
    return ones


@triton.jit
def divided(sums, Z, HOPPER: tl.constexpr):
    """N / Z correctly rounded.

    N times a reciprocal in two parts is off by 2^-20 of a last place before it is rounded. N / Z is no tie of
    two float32, as N <= 2^24, and lies 2^-18 of a last place or more from one, as Z <= 2^17.
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
def parameters_of(table_ptr, SCORES: tl.constexpr):
    """B, S, D, S2, D2 and f, then the five of `Requant.packed`; scores of BYTES end at bit 8 of a half."""
    B, S, D = tl.load(table_ptr), tl.load(table_ptr + 1), tl.load(table_ptr + 2)
    S2, D2, f = tl.load(table_ptr + 3), tl.load(table_ptr + 4), tl.load(table_ptr + 5)
    if SCORES == BYTES:
        B, S, S2 = B << (8 - f), S << (8 - f), S2 << (8 - f)
    lines = (B, S, D, S2, D2, f)
    factors = (tl.load(table_ptr + 6), tl.load(table_ptr + 7), tl.load(table_ptr + 8))
    return lines + factors + (tl.load(table_ptr + 9), tl.load(table_ptr + 10))


@triton.jit
def output_of(
    sums, Z, multiplier, shift, v_scale, dtype: tl.constexpr, OUT: tl.constexpr, LONG: tl.constexpr,
    HOPPER: tl.constexpr,
):  # fmt: skip
    """The output of (N, Z) by docs/spec.md; `sums` is N in steps of 2^-24, or N itself where LONG."""
    N = sums if LONG else sums / STEP
    if OUT == PAIR:
        result = N
    elif OUT == INT8:
        Z = tl.maximum(Z, 1)
        k = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        multiplier = (multiplier.to(tl.int64) << k) // Z
        # Beyond 2^24 integers are not exact in the float32 that Hopper's way computes in.
        result = round_half_up(N, multiplier[:, None], (shift + k)[:, None], HOPPER and not LONG)
    elif LONG:
        Z = tl.maximum(Z, 1).to(tl.float32)[:, None]
        result = tl.div_rn(N.to(tl.float32), tl.broadcast_to(Z, N.shape))
        result = result * v_scale.to(tl.float32, bitcast=True)
    else:
        result = divided(sums, tl.maximum(Z, 1).to(tl.float32) * STEP, HOPPER)
        result = result * v_scale.to(tl.float32, bitcast=True)
    return result.to(dtype)


@triton.jit
def store_rows(
    out_ptr, sum_ptr, multiplier, shift, v_scale, g, query, column, sums, Z, nq, d,
    FULL: tl.constexpr, OUT: tl.constexpr, LONG: tl.constexpr, HOPPER: tl.constexpr,
):  # fmt: skip
    """The output of a block of queries."""
    if OUT == PAIR:  # only the program of the first columns writes Z
        rows = tl.where(tl.program_id(1) == 0, nq, 0)
        tl.store(sum_ptr + g.to(tl.int64) * nq + query, Z, mask=query < rows)
    result = output_of(sums, Z, multiplier, shift, v_scale, out_ptr.dtype.element_ty, OUT, LONG, HOPPER)
    place = out_ptr + g.to(tl.int64) * nq * d + (query[:, None] * d + column[None, :])
    if FULL:
        tl.store(place, result)
    else:
        tl.store(place, result, mask=(query < nq)[:, None] & (column < d)[None, :])


_ROWS = 32


@triton.jit(do_not_specialize=["keys"])
def _pack(mask_ptr, out_ptr, rows, keys, blocks, n1, n2, s0, s1, s2, s3, ROWS: tl.constexpr):
    """The words of ROWS rows and 128 keys."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1)
    i0, i1, i2 = row // (n1 * n2), row // n2 % n1, row % n2
    start = i0.to(tl.int64) * s0 + i1.to(tl.int64) * s1 + i2.to(tl.int64) * s2
    key = block * 128 + tl.arange(0, 128)
    place = mask_ptr + start[:, None] + (key * s3)[None, :]
    chosen = tl.load(place, mask=(row < rows)[:, None] & (key < keys)[None, :], other=0) != 0
    eighth, pair = tl.arange(0, 128) // 8, tl.arange(0, 128) % 2
    bits = chosen.to(tl.int32) << (15 - eighth + 16 * pair)[None, :]
    words = tl.sum(tl.reshape(tl.sum(tl.reshape(bits, [ROWS, 16, 8]), axis=1), [ROWS, 4, 2]), axis=2)
    target = out_ptr + (row.to(tl.int64) * blocks + block)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(target, words, mask=(row < rows)[:, None])


def packed(mask: torch.Tensor, keys: int, most: int) -> torch.Tensor:
    """A mask [..., keys or 1] as int32 [..., 4 * blocks of 128 keys], with room for `most`.

    What is broadcast stays one row.

    A thread of the kernels holds two neighbouring keys of every eight, as halves of a word. So the bits of
    128 keys go to four words, one for each pair of the eight: even keys to the lower half, odd keys to the
    upper half, the first key highest. Shifting such a word left by one moves to the thread's next pair.
    """
    mask = mask.expand(*mask.shape[:-1], keys)
    blocks = -(-most // 128)
    words = torch.empty((*mask.shape[:-1], 4 * blocks), dtype=torch.int32, device=mask.device)
    if words.numel():
        full, places = rows_in(mask)
        rows = words.numel() // (4 * blocks)
        kernel: Any = _pack
        kernel[(triton.cdiv(rows, _ROWS), blocks)](
            full.view(torch.uint8), words, rows, keys, blocks, *places, ROWS=_ROWS, **FUSED
        )
    return words
