"""The steps of attention between its two products in Gluon, for `pipelined.py`.

Those of `packed_logits.py`, on half a block of keys. ptxas takes sums of registers that a later product
overwrites for sums of that product: assembly that is not pure keeps those in their place.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from hccs.backends.triton.attention import packed_logits
from hccs.backends.triton.codes import APART, BY_BLOCK, BYTES, ONE_LINE

HALF = gl.constexpr(64)

ZERO, LEAST, LARGEST = packed_logits.ZERO, packed_logits.LEAST, packed_logits.LARGEST
LOWEST, STEP = packed_logits.LOWEST, packed_logits.STEP
_PAIR_OF_LOGITS = packed_logits._PAIR_OF_LOGITS
_PAIR_OF_SCORES = packed_logits._PAIR_OF_SCORES
_PAIR_OF_TWO_LINES = packed_logits._PAIR_OF_TWO_LINES
_PAIR_OF_BYTES = packed_logits._PAIR_OF_BYTES
HALVES_OF_BYTES = packed_logits._HALVES_OF_BYTES
ROUNDED_HALF_UP = packed_logits._ROUNDED_HALF_UP
# The bits of 128 + v are a float16, 2^-24 times as large.
STEPS_OF_BYTES = gl.constexpr("""{
    .reg .b32 x;
    xor.b32 x, $2, 0x80808080;
    prmt.b32 $0, x, 0, 0x4140;
    prmt.b32 $1, x, 0, 0x4342;
}""")


@gluon.jit
def even_and_odd(x, ROWS: gl.constexpr):
    """Columns 0, 2, ... and 1, 3, ..., which one thread holds."""
    return gl.split(gl.reshape(x, [ROWS, HALF // 2, 2]))


@gluon.jit
def beside_pairs(row, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """One value per row in the layout of `even_and_odd`."""
    value, _ = even_and_odd(row[:, None] + gl.zeros([ROWS, HALF], gl.int32, LAYOUT), ROWS)
    return value


@gluon.jit
def maxima(acc, ROWS: gl.constexpr):
    """Of every eighth column, those that one thread holds."""
    found = gl.max(gl.reshape(acc, [ROWS, HALF // 8, 8]), axis=1)
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [found], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def hidden(acc, limit, first, LAYOUT: gl.constexpr):
    """The least there is in place of what a row does not see of the keys from `first` on."""
    key = first + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT))
    return gl.where(key[None, :] < limit[:, None], acc, LOWEST)


@gluon.jit
def ones_below(limit, first, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Words of ones in the halves whose key lies below its row's limit."""
    key = gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT))
    bits, _ = even_and_odd((16 * (limit - first))[:, None] + (-16 * key)[None, :], ROWS)
    zeros = gl.inline_asm_elementwise(
        "shl.b32 $0, -1, $1;", "=r,r", [gl.maximum(bits, 0)], dtype=gl.int32, is_pure=True, pack=1
    )
    return ~zeros


@gluon.jit
def line_of(largest, B, S, D, S2, D2, SCORES: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Distances of rows whose largest logit is kept as `largest` (docs/spec.md), twice in a word."""
    largest = gl.minimum(gl.maximum(largest, LEAST), LARGEST)
    reach = gl.minimum(largest - LEAST, D)
    near = gl.minimum(largest - LEAST, D2)
    least = B - S * reach
    if SCORES != ONE_LINE:
        least -= S2 * near
    return (
        beside_pairs(((reach - largest) & 0xFFFF) * 0x10001, ROWS, LAYOUT),
        beside_pairs(reach * 0x10001, ROWS, LAYOUT),
        beside_pairs(((near - largest) & 0xFFFF) * 0x10001, ROWS, LAYOUT),
        beside_pairs(near * 0x10001, ROWS, LAYOUT),
        S, S2, beside_pairs(least * 0x10001, ROWS, LAYOUT),
    )  # fmt: skip


@gluon.jit
def scores_of(acc, factor, line, SCORES: gl.constexpr, ROWS: gl.constexpr):
    """Scores of products, two to a word (eq. 2, 3)."""
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
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    return pairs


@gluon.jit
def sums_of(pairs, SUMS: gl.constexpr, ROWS: gl.constexpr):
    """Of the scores that one thread holds of a row: words of two sums if PACKED, else sums."""
    if SUMS == APART:
        pairs = (pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF)
    parts = gl.sum(gl.reshape(pairs, [ROWS, HALF // 8, 4]), axis=1)
    if SUMS == BY_BLOCK:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    return parts


@gluon.jit
def plus(a, b):
    """The sum, in its place."""
    return gl.inline_asm_elementwise(
        "add.s32 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def halves_of(pairs, ROWS: gl.constexpr):
    """The halves of words as float16 columns; no instruction."""
    even = (pairs & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True)
    odd = (pairs >> 16).to(gl.int16).to(gl.float16, bitcast=True)
    return gl.reshape(gl.join(even, odd), [ROWS, HALF])


@gluon.jit
def divided(sums, Z, ROWS: gl.constexpr, BLOCK_D: gl.constexpr, LAYOUT: gl.constexpr):
    """As in `steps.py`."""
    upper = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [Z], dtype=gl.float32, is_pure=True, pack=1
    )
    lower = gl.fma(-Z, upper, gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, LAYOUT))) * upper
    upper = upper[:, None] + gl.zeros([ROWS, BLOCK_D], gl.float32, LAYOUT)
    return gl.fma(sums, upper, sums * lower[:, None])
