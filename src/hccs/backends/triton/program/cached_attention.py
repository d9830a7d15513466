"""Attention of new tokens over int8 keys and values in a cache, to which theirs are appended first.

The rows of a tile are the queries of all heads that share keys, so that one pass over these serves them all.
How many tokens there are, and where the cache lies, is read from device memory: a launch depends on neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED, capability, overlapping
from hccs.backends.triton.program.attention import (
    _DISTANCES,
    _FACTORS,
    _MOST_KEYS,
    Heads,
    _in_two_passes,
    _rounded,
)
from hccs.backends.triton.program.integers import wait_for_launch_before

ALIGNMENT = 64
"""The capacity of a cache is a multiple of it: so is the address of a head's keys."""

_ALIGNMENT = tl.constexpr(ALIGNMENT)
_NEW_ROWS = 32


@dataclass(frozen=True, eq=False)
class Cached:
    """New tokens of texts, packed, and the cache that they belong to.

    The sequence with rows from `starts` on is the text `texts` of the cache, where it has `past` tokens;
    `longest` is the most rows of one. `geometry` holds where in `memory` the cache begins, its rows of a text
    and its texts.
    """

    memory: torch.Tensor
    geometry: torch.Tensor
    starts: torch.Tensor
    past: torch.Tensor
    texts: torch.Tensor
    longest: int


@triton.jit
def _places(geometry_ptr, text, kv_head, kv_heads, before, DIM: tl.constexpr):
    """Where the keys of one head of a text begin, and its values; `before` are bytes of a row."""
    capacity, texts = tl.load(geometry_ptr + 1), tl.load(geometry_ptr + 2)
    first = tl.load(geometry_ptr) + texts * capacity * before
    keys = first + (text.to(tl.int64) * kv_heads + kv_head) * capacity * DIM
    values = keys + texts * kv_heads * capacity * DIM
    return tl.multiple_of(keys, _ALIGNMENT), tl.multiple_of(values, _ALIGNMENT)


@triton.jit
def _append_rows(
    kv_ptr, memory_ptr, keys_at, values_at, start, past, first, new, kv_head, kv_heads, kv_step,
    DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keys and values of some new tokens of a sequence to their places behind the past ones."""
    token, column = first + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    there = (token < new)[:, None] & (column < DIM)[None, :]
    read = kv_ptr + (start + token).to(tl.int64)[:, None] * kv_step + (kv_head * DIM + column)[None, :]
    to = memory_ptr + (past + token).to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(to + keys_at, tl.load(read, mask=there, other=0), mask=there)
    tl.store(to + values_at, tl.load(read + kv_heads * DIM, mask=there, other=0), mask=there)


@triton.jit
def _append(
    kv_ptr, memory_ptr, geometry_ptr, starts_ptr, past_ptr, texts_ptr, kv_heads, kv_step, before,
    DIM: tl.constexpr, OVERLAPS: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head of some new tokens of a sequence."""
    wait_for_launch_before(OVERLAPS)
    sequence, kv_head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    start = tl.load(starts_ptr + sequence)
    new = tl.load(starts_ptr + sequence + 1) - start
    first = tl.program_id(1) * ROWS
    if first < new:
        text, past = tl.load(texts_ptr + sequence), tl.load(past_ptr + sequence)
        keys_at, values_at = _places(geometry_ptr, text, kv_head, kv_heads, before, DIM)
        _append_rows(
            kv_ptr, memory_ptr, keys_at, values_at, start, past, first, new, kv_head, kv_heads, kv_step,
            DIM, ROWS, BLOCK_D,
        )  # fmt: skip


@triton.jit
def _attention_over_cache(
    q_ptr, kv_ptr, memory_ptr, out_ptr, factor_ptr, scores_ptr, geometry_ptr, starts_ptr, past_ptr, texts_ptr,
    kv_heads, q_step, kv_step, out_step, bytes_before, before,
    DIM: tl.constexpr, SHARING: tl.constexpr, BY_TABLE: tl.constexpr, DIGITS: tl.constexpr,
    LAST: tl.constexpr, GATHERED: tl.constexpr, APPENDS: tl.constexpr, NVIDIA: tl.constexpr,
    OVERLAPS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A block of the queries that share a head of keys.

    With LAST only the last token of a sequence has a query; GATHERED ones have a row per sequence. With
    APPENDS a sequence has one new token, and its only program appends it.
    """
    wait_for_launch_before(OVERLAPS)
    sequence, kv_head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    start = tl.load(starts_ptr + sequence)
    new = tl.load(starts_ptr + sequence + 1) - start
    first_row = tl.program_id(1) * ROWS
    queries = tl.minimum(new, 1) if LAST else new
    # Loaded before the branch, at once: there is room for sequences that there are not.
    text, past = tl.load(texts_ptr + sequence), tl.load(past_ptr + sequence)
    keys_at, values_at = _places(geometry_ptr, text, kv_head, kv_heads, bytes_before, DIM)
    if first_row < queries * SHARING:
        if APPENDS:
            _append_rows(
                kv_ptr, memory_ptr, keys_at, values_at, start, past, 0, new, kv_head, kv_heads, kv_step,
                DIM, 1, BLOCK_D,
            )  # fmt: skip
            tl.debug_barrier()  # what some threads have written others read
        row, column = first_row + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        query = row // SHARING
        head = kv_head * SHARING + row % SHARING
        there = (query < queries)[:, None] & (column < DIM)[None, :]
        skipped = new - 1 if LAST else 0
        out_row = sequence + query if LAST else start + query
        q_row = out_row if GATHERED else start + skipped + query
        place = q_ptr + q_row.to(tl.int64)[:, None] * q_step + (head * DIM)[:, None] + column[None, :]
        q = tl.load(place, mask=there, other=0)
        head = tl.where(query < queries, head, kv_head * SHARING)
        factor = factor_ptr + head * _FACTORS
        scores = scores_ptr
        if BY_TABLE:
            scores = scores_ptr + (head * _DISTANCES)[:, None]
        position = past + skipped + query
        nearest = past + skipped + first_row // SHARING
        end = past + skipped + tl.minimum(queries, (first_row + (ROWS - 1)) // SHARING + 1)
        begin = tl.maximum(nearest - before, 0) // KEYS * KEYS
        keys, values = memory_ptr + keys_at, memory_ptr + values_at
        N = tl.zeros([ROWS, BLOCK_D], tl.int32)
        Z = tl.zeros([ROWS], tl.int32)
        N, Z = _in_two_passes(
            N, Z, q, keys, values, begin, end, column, end, position, DIM, before, 0, factor,
            factor[:, None], scores, DIM, BY_TABLE, DIGITS, True, NVIDIA, ROWS, KEYS,
        )  # fmt: skip
        place = out_ptr + out_row.to(tl.int64)[:, None] * out_step + (head * DIM)[:, None] + column[None, :]
        tl.store(place, _rounded(N, Z, factor), mask=there)


def attention_over_cache(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, cached: Cached, heads: Heads, bytes_before: int,
    last: bool, gathered: bool,
) -> None:  # fmt: skip
    """`out` rows of the heads of q over the cache, to which the new `kv` rows are appended.

    `bytes_before` are the bytes that the attentions before keep of a token. With `last` there are rows of
    last tokens alone, and q has no others where they are `gathered`.
    """
    sharing, sequences = heads.heads // heads.shared, len(cached.starts) - 1
    block_d = max(triton.next_power_of_2(heads.dim), 32)
    fixed = (cached.geometry, cached.starts, cached.past, cached.texts, heads.shared)
    one = cached.longest == 1 and sharing <= 16
    if not one:
        append: Any = _append
        append[(sequences * heads.shared, triton.cdiv(cached.longest, _NEW_ROWS))](
            kv, cached.memory, *fixed, kv.stride(0), bytes_before, DIM=heads.dim, ROWS=_NEW_ROWS,
            BLOCK_D=block_d, num_warps=4, **overlapping(q.device, len(q)), **FUSED,
        )  # fmt: skip
    most = (1 if last else cached.longest) * sharing
    keys, rows = _MOST_KEYS, min(max(triton.next_power_of_2(most), 16), 64)
    if block_d > 128:
        keys, rows = 32, min(rows, 32)
    kernel: Any = _attention_over_cache
    kernel[(sequences * heads.shared, triton.cdiv(most, rows))](
        q, kv, cached.memory, out, heads.factors, heads.scores, *fixed, q.stride(0), kv.stride(0),
        out.stride(0), bytes_before, heads.before, DIM=heads.dim, SHARING=sharing,
        BY_TABLE=heads.scores is not None, DIGITS=heads.digits, LAST=last, GATHERED=gathered, APPENDS=one,
        NVIDIA=capability(q.device) > (0, 0), ROWS=rows, KEYS=keys, BLOCK_D=block_d, num_warps=4,
        num_stages=2, **overlapping(q.device, len(q)), **FUSED,
    )  # fmt: skip
