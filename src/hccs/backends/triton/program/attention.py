"""Attention over packed sequences: scores by lines or by a table of distances, int8 in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import as_halves, round_half_up
from hccs.backends.triton.devices import FUSED, capability, overlapping
from hccs.backends.triton.program.integers import (
    exact_float,
    look_up,
    power_of_2,
    quotient,
    wait_for_launch_before,
)
from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.modes import MAX_DISTANCE
from hccs.numbers.requant import Requant
from hccs.numbers.score_tables import DISTANCES, ScoreTable

_FACTORS = tl.constexpr(10)
_DISTANCES = tl.constexpr(DISTANCES)
_FAR = tl.constexpr(MAX_DISTANCE)
_LOWEST = tl.constexpr(-(2**25))
_DIGIT_BITS = tl.constexpr(10)
_DIGIT = tl.constexpr(1023)
_OF_HALVES = tl.constexpr(2.0**24)
_MOST_KEYS = 128
"""128 * 128 * 1023 < 2^24: float32 adds the products of a block's digits with its values exactly."""


@dataclass(frozen=True, eq=False)
class Heads:
    """The constants of an attention on a device: ten integers of each head, or its scores besides."""

    factors: torch.Tensor
    scores: torch.Tensor | None
    digits: int
    heads: int
    shared: int
    dim: int
    before: int
    after: int


def heads_on(
    theta: HeadParams | ScoreTable, requant: Requant, shared: int, dim: int, reach: tuple[int, int],
    device: torch.device,
) -> Heads:  # fmt: skip
    """`reach` counts the keys before and after its own position that a query sees at most."""
    count = theta.shape[0]
    five = np.broadcast_to(requant.packed, (count, 5)).astype(np.int64)
    lines = np.zeros((6, count), np.int64)
    scores = None
    if isinstance(theta, ScoreTable):
        scores = torch.tensor(np.ascontiguousarray(theta.packed, np.int32), device=device)
    else:
        lines[:] = [np.broadcast_to(getattr(theta, name), (count,)) for name in NAMES]
    factors = np.concatenate([five[:, :4], lines.T], axis=1)
    return Heads(
        torch.tensor(np.ascontiguousarray(factors, np.int32), device=device), scores,
        1 if theta.max_score <= _DIGIT.value else 2, count, shared, dim, *reach,
    )  # fmt: skip


@triton.jit
def _logits(acc, factor_ptr, NVIDIA: tl.constexpr):
    """Accumulators, which float32 holds, to int8 logits by their head's factor."""
    return round_half_up(acc.to(tl.float32), tl.load(factor_ptr), tl.load(factor_ptr + 1), NVIDIA)


@triton.jit
def _scores(distance, factor_ptr, scores_ptr, BY_TABLE: tl.constexpr, NVIDIA: tl.constexpr):
    if BY_TABLE:
        s = look_up(scores_ptr, distance, NVIDIA)
    else:
        B, S, D = tl.load(factor_ptr + 4), tl.load(factor_ptr + 5), tl.load(factor_ptr + 6)
        S2, D2, f = tl.load(factor_ptr + 7), tl.load(factor_ptr + 8), tl.load(factor_ptr + 9)
        s = (B - S * tl.minimum(distance, D) - S2 * tl.minimum(distance, D2)) >> f
    return s


@triton.jit
def _products(
    q, k_rows, key, column, length, query, kv_step, before, after, DIM: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """q.k of a block of keys, far below all others where a query does not see the key; and what it sees."""
    inside = (key < length)[:, None] & (column < DIM)[None, :]
    k = tl.load(k_rows + key.to(tl.int64)[:, None] * kv_step + column[None, :], mask=inside, other=0)
    acc = tl.dot(q, tl.trans(k), out_dtype=tl.int32)
    seen = (key < length)[None, :]
    if WINDOW:
        far = key[None, :] - query[:, None]
        seen = seen & (far >= -before) & (far <= after)
    return tl.where(seen, acc, _LOWEST), seen


@triton.jit
def _as_half(digit):
    """The bits of an integer up to 1023 are those of a float16, too: 2^-24 times as large."""
    return digit.to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _added(
    N, Z, acc, seen, largest, v_rows, start, column, length, kv_step, factor_ptr, scores_ptr,
    DIM: tl.constexpr, BY_TABLE: tl.constexpr, DIGITS: tl.constexpr, WINDOW: tl.constexpr,
    NVIDIA: tl.constexpr,
):  # fmt: skip
    """N and Z with the block of keys at `start`: scores of 15 bits are multiplied as digits of ten."""
    key = start + tl.arange(0, acc.shape[1])
    distance = tl.minimum(largest[:, None] - _logits(acc, factor_ptr, NVIDIA), _FAR)
    s = _scores(distance, factor_ptr, scores_ptr, BY_TABLE, NVIDIA)
    if WINDOW:
        s = tl.where(seen, s, 0)
    else:  # keys behind the last have values of zero, and the score of the farthest logit
        # Triton 3.7's interpreter takes no tensor from a constant: the start may be one.
        behind = tl.maximum(start - length + acc.shape[1], 0)
        Z -= behind * _scores(tl.minimum(largest + 128, _FAR), factor_ptr, scores_ptr, BY_TABLE, NVIDIA)
    inside = (key < length)[:, None] & (column < DIM)[None, :]
    v = tl.load(v_rows + key.to(tl.int64)[:, None] * kv_step + column[None, :], mask=inside, other=0)
    v = as_halves(v, NVIDIA)
    lower = s
    if DIGITS == 2:
        lower = s & _DIGIT
        upper = tl.dot(_as_half(s >> _DIGIT_BITS), v, out_dtype=tl.float32)
        N += (upper * _OF_HALVES).to(tl.int32) << _DIGIT_BITS
    N += (tl.dot(_as_half(lower), v, out_dtype=tl.float32) * _OF_HALVES).to(tl.int32)
    return N, Z + tl.sum(s, axis=1)


@triton.jit
def _in_two_passes(
    N, Z, q, k_rows, v_rows, begin, end, column, length, query, kv_step, before, after, factor_ptr,
    factors_ptr, scores_ptr, DIM: tl.constexpr, BY_TABLE: tl.constexpr, DIGITS: tl.constexpr,
    WINDOW: tl.constexpr, NVIDIA: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """N and Z with keys in blocks, which pass two times, first for the maximum.

    A factor is positive, so that the largest accumulator gives the largest logit. `factor_ptr` is that of a
    row's head, `factors_ptr` the same beside its keys.
    """
    peaks = tl.full([ROWS], _LOWEST, tl.int32)
    for start in tl.range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        acc, seen = _products(q, k_rows, key, column, length, query, kv_step, before, after, DIM, WINDOW)
        peaks = tl.maximum(peaks, tl.max(acc, axis=1))
    largest = _logits(peaks, factor_ptr, NVIDIA)
    for start in tl.range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        acc, seen = _products(q, k_rows, key, column, length, query, kv_step, before, after, DIM, WINDOW)
        N, Z = _added(
            N, Z, acc, seen, largest, v_rows, start, column, length, kv_step, factors_ptr, scores_ptr, DIM,
            BY_TABLE, DIGITS, WINDOW, NVIDIA,
        )  # fmt: skip
    return N, Z


@triton.jit
def _rounded(N, Z, factor_ptr):
    """int8 outputs of rows; `factor_ptr` is that of their head, or of each row's."""
    Z = tl.maximum(Z, 1)
    bits = (Z.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # Z < 2^24 is exact in float32
    multiplier = quotient(exact_float(tl.load(factor_ptr + 2)) * power_of_2(bits), Z).to(tl.int64)
    shift = tl.minimum(tl.load(factor_ptr + 3) + bits, 62).to(tl.int64)
    half = (tl.zeros_like(shift) + 1) << (shift - 1)
    wide = (N.to(tl.int64) * multiplier[:, None] + half[:, None]) >> shift[:, None]
    # |N| <= 128 Z: what is left after the shift has 31 bits.
    return tl.minimum(tl.maximum(wide.to(tl.int32), -128), 127).to(tl.int8)


@triton.jit
def _attention(
    q_ptr, k_ptr, v_ptr, out_ptr, factor_ptr, scores_ptr, q_starts_ptr, k_starts_ptr, out_starts_ptr,
    heads, sharing, q_step, kv_step, out_step, before, after,
    DIM: tl.constexpr, BY_TABLE: tl.constexpr, DIGITS: tl.constexpr, ONE_BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, NVIDIA: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head. ONE_BLOCK holds all keys."""
    wait_for_launch_before(OVERLAPS)
    sequence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    out_start = tl.load(out_starts_ptr + sequence)
    queries = tl.load(out_starts_ptr + sequence + 1) - out_start
    first = tl.program_id(1) * ROWS
    if first < queries:
        k_start = tl.load(k_starts_ptr + sequence).to(tl.int64)
        length = tl.load(k_starts_ptr + sequence + 1) - k_start.to(tl.int32)
        factor_ptr += head * _FACTORS
        if BY_TABLE:
            scores_ptr += head * _DISTANCES
        query, column = first + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        there = (query < queries)[:, None] & (column < DIM)[None, :]
        q_row = (tl.load(q_starts_ptr + sequence) + query).to(tl.int64)[:, None]
        q = tl.load(q_ptr + q_row * q_step + (head * DIM + column)[None, :], mask=there, other=0)
        k_rows = k_ptr + k_start * kv_step + (head // sharing) * DIM
        v_rows = v_ptr + k_start * kv_step + (head // sharing) * DIM
        N = tl.zeros([ROWS, BLOCK_D], tl.int32)
        Z = tl.zeros([ROWS], tl.int32)
        if ONE_BLOCK:
            key = tl.arange(0, KEYS)
            acc, seen = _products(q, k_rows, key, column, length, query, kv_step, before, after, DIM, WINDOW)
            largest = _logits(tl.max(acc, axis=1), factor_ptr, NVIDIA)
            N, Z = _added(
                N, Z, acc, seen, largest, v_rows, 0, column, length, kv_step, factor_ptr, scores_ptr, DIM,
                BY_TABLE, DIGITS, WINDOW, NVIDIA,
            )  # fmt: skip
        else:
            begin = tl.maximum(first - before, 0) // KEYS * KEYS
            end = tl.minimum(length, first + (ROWS + after))
            N, Z = _in_two_passes(
                N, Z, q, k_rows, v_rows, begin, end, column, length, query, kv_step, before, after,
                factor_ptr, factor_ptr, scores_ptr, DIM, BY_TABLE, DIGITS, WINDOW, NVIDIA, ROWS, KEYS,
            )  # fmt: skip
        result = _rounded(N, Z, factor_ptr)
        out_row = (out_start + query).to(tl.int64)[:, None]
        tl.store(out_ptr + out_row * out_step + (head * DIM + column)[None, :], result, mask=there)


def tile_of(longest: int, block_d: int) -> tuple[int, int, int, int]:
    """Queries and keys of a block, warps and stages."""
    whole = max(triton.next_power_of_2(longest), 16)
    if block_d > 128:
        return min(whole, 32), min(whole, 32), 4, 2
    if whole <= 32:
        return whole, whole, 1, 2
    return (64, whole, 4, 2) if whole <= _MOST_KEYS else (64, 64, 4, 3)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, q_starts: torch.Tensor,
    k_starts: torch.Tensor, out_starts: torch.Tensor, heads: Heads, longest: int,
) -> None:  # fmt: skip
    """`out` rows of the heads of q, k and v rows; no sequence has more than `longest` keys.

    Starts say where the rows of a sequence lie, and those of `out` how many there are: query i of a sequence
    stands at its position i.
    """
    sequences = len(out_starts) - 1
    block_d = max(triton.next_power_of_2(heads.dim), 32)
    rows, keys, warps, stages = tile_of(longest, block_d)
    queries = longest if out_starts is k_starts else 1
    kernel: Any = _attention
    kernel[(sequences * heads.heads, triton.cdiv(queries, rows))](
        q, k, v, out, heads.factors, heads.scores, q_starts, k_starts, out_starts,
        heads.heads, heads.heads // heads.shared, q.stride(0), k.stride(0), out.stride(0),
        heads.before, heads.after, DIM=heads.dim, BY_TABLE=heads.scores is not None, DIGITS=heads.digits,
        ONE_BLOCK=longest <= keys, WINDOW=min(heads.before, heads.after) < longest,
        NVIDIA=capability(q.device) > (0, 0), ROWS=rows, KEYS=keys, BLOCK_D=block_d,
        num_warps=warps, num_stages=stages, **overlapping(q.device, len(q)), **FUSED,
    )  # fmt: skip
