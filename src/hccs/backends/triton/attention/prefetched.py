"""Attention of many short heads on Hopper: a program has the next heads under way while it computes one.

q, k and the output move as tiles by the machine's copy engine, which takes few instructions and registers.
v, which has to become float16, is loaded a head ahead into registers, as words. That leaves shared memory
for three programs on a multiprocessor, each two heads ahead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.attention.packed_logits import halves_of_words
from hccs.backends.triton.attention.resident import on_resident_keys
from hccs.backends.triton.attention.steps import output_of, parameters_of, store_sums
from hccs.backends.triton.codes import PAIR


@triton.jit
def words_of_values(
    v_ptr, batch, v0, v2, nk, ALL: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """A head of v, four columns to a word, zeros beyond the last key."""
    key = tl.arange(0, KEYS)[:, None]
    place = v_ptr + batch.to(tl.int64) * v0 + (key * v2 + tl.arange(0, BLOCK_D // 4)[None, :])
    if ALL:
        words = tl.load(place)
    else:
        words = tl.load(place, mask=key < nk, other=0)
    return words


@triton.jit
def attention_prefetched(
    q_tiles, k_tiles, v_ptr, table_ptr, valid_ptr, fault_ptr, out_tiles, sum_ptr,
    nq, nk, heads, sharing, blocks, tasks, v0, v1, v2, t0, t1, n1, s0, s1, s2,
    MASKING: tl.constexpr, CAUSAL: tl.constexpr, ALL: tl.constexpr, MODE: tl.constexpr, OUT: tl.constexpr,
    SCORES: tl.constexpr, SUMS: tl.constexpr, HIGH: tl.constexpr, LONG: tl.constexpr, IS_WIDE: tl.constexpr,
    HOPPER: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    REPEAT: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """`attention_resident` for one block of KEYS keys; the strides of v count words."""
    h, start = tl.program_id(0) % heads, tl.program_id(0) // heads
    step = tl.num_programs(0) // heads
    table_ptr += h * t1
    v_ptr += (h // sharing).to(tl.int64) * v1
    parameters = parameters_of(table_ptr, SCORES)
    ahead = words_of_values(v_ptr, start // blocks, v0, v2, nk, ALL, KEYS, BLOCK_D)
    for task in tl.range(start, tasks, step):
        batch = task // blocks
        g = batch * heads + h
        if not SHARED:
            parameters = parameters_of(table_ptr + batch * t0, SCORES)
        _, _, _, _, _, _, _, _, multiplier, shift, v_scale = parameters
        keys = (k_tiles.load([batch, h // sharing, 0, 0]).reshape(KEYS, BLOCK_D),)
        values = (halves_of_words(ahead, KEYS, BLOCK_D, HOPPER),)
        for i in tl.static_range(REPEAT):
            first = (task % blocks) * (REPEAT * ROWS) + i * ROWS
            query = first + tl.arange(0, ROWS)
            q = q_tiles.load([batch, h, first, 0]).reshape(ROWS, BLOCK_D)
            sums, Z = on_resident_keys(
                q, keys, values, parameters, None, None, valid_ptr, fault_ptr, g, query, 0, 0,
                nq, nk, BLOCK_D, n1, s0, s1, s2, MASKING, CAUSAL, ALL, False, MODE,
                SCORES, SUMS, HIGH, LONG, IS_WIDE, HOPPER, 1, BLOCK_D, ROWS, KEYS, 1,
            )  # fmt: skip
            if OUT == PAIR:
                store_sums(sum_ptr, g, query, Z, nq)
            result = output_of(sums, Z, multiplier, shift, v_scale, out_tiles.dtype, OUT, LONG, HOPPER)
            out_tiles.store([batch, h, first, 0], result.reshape(1, 1, ROWS, BLOCK_D))
            if i == 0:  # not before: the fences of a block would wait for it
                ahead = words_of_values(
                    v_ptr, tl.minimum(task + step, tasks - 1) // blocks, v0, v2, nk, ALL, KEYS, BLOCK_D
                )
