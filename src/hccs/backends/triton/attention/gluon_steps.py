"""The steps of `packed_logits.py` that differ in Gluon, Triton's language beneath its own, for Hopper alone.

Gluon lets a program compute while a product is under way. Logits and scores come from assembly that is not
pure, so that they keep their place between two products: ptxas confuses values computed from registers that
two products write. What needs no layout is Triton's: Gluon calls its functions, too.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from hccs.backends.triton.attention import packed_logits, steps
from hccs.backends.triton.attention.packed_logits import STEP, ZERO, as_factor, even_and_odd
from hccs.backends.triton.codes import ONE_LINE

# Names that Triton 3.9 changed.
begin_async_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_shared = gl.shared_memory_descriptor
reinterpreted = getattr(_shared, "reinterpret", None) or _shared._reinterpret

_PAIR_OF_LOGITS = packed_logits._PAIR_OF_LOGITS
_PAIR_OF_SCORES = packed_logits._PAIR_OF_SCORES
_PAIR_OF_BYTES = packed_logits._PAIR_OF_BYTES
_ROUNDED_HALF_UP = packed_logits._ROUNDED_HALF_UP
# The bits of 128 + v are a float16, 2^-24 times as large.
_STEPS_OF_BYTES = gl.constexpr("""{
    .reg .b32 x;
    xor.b32 x, $2, 0x80808080;
    prmt.b32 $0, x, 0, 0x4140;
    prmt.b32 $1, x, 0, 0x4342;
}""")


@gluon.jit
def parameters_of(table_ptr, SCORES: gl.constexpr):
    """B, S, D, S2 and D2, then the factors of logits and of the output; see `steps.py`."""
    B, S, D, S2, D2, _, multiplier, shift, _, _, v_scale = steps.parameters_of(table_ptr, SCORES)
    return B, S, D, S2, D2, as_factor(multiplier, shift), v_scale.to(gl.float32, bitcast=True)


@gluon.jit
def beside_pairs(row, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """One value per row in the layout of `even_and_odd`."""
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT))
    value, _ = even_and_odd(row[:, None] + gl.zeros([ROWS, COLUMNS], gl.int32, LAYOUT), ROWS, COLUMNS)
    return value


@gluon.jit
def bytes_of_words(words, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Words of four int8 as columns; no instruction."""
    even = gl.join(words.to(gl.int8), (words >> 16).to(gl.int8))
    odd = gl.join((words >> 8).to(gl.int8), (words >> 24).to(gl.int8))
    return gl.reshape(gl.join(even, odd), [ROWS, COLUMNS])


@gluon.jit
def as_raised_steps(v):
    """int8 and 128 more as float16, in steps of 2^-24: less work than `as_halves`."""
    return gl.inline_asm_elementwise(
        _STEPS_OF_BYTES, "=r,=r,r", [v], dtype=gl.float16, is_pure=True, pack=4
    )  # fmt: skip


@gluon.jit
def reordered(x, ROWS: gl.constexpr):
    """64 columns so that the pairs of them that a product spreads over four threads are neighbours.

    Applied to v's columns and to those of the sums, it leaves every column in its place.
    """
    return gl.reshape(gl.permute(gl.reshape(x, [ROWS, 2, 4, 4, 2]), (0, 1, 3, 2, 4)), [ROWS, 64])


@gluon.jit
def ones_below(limit, first, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Words of ones in the halves whose key lies below its row's limit; keys are counted from `first`."""
    key = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    bits, _ = even_and_odd((16 * (limit - first))[:, None] + (-16 * key)[None, :], ROWS, COLUMNS)
    zeros = gl.inline_asm_elementwise(
        "shl.b32 $0, -1, $1;", "=r,r", [gl.maximum(bits, 0)], dtype=gl.int32, is_pure=True, pack=1
    )
    return ~zeros


@gluon.jit
def logits_of_pairs(acc, factor, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Words of two neighbouring keys, the even one in the low half."""
    even, odd = even_and_odd(acc, ROWS, COLUMNS)
    return gl.inline_asm_elementwise(
        _PAIR_OF_LOGITS, "=r,r,r,f", [even, odd, factor], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def logit_of_largest(product, factor):
    """The logit of a row's largest product, as a half of a pair would keep it."""
    return ZERO + gl.inline_asm_elementwise(
        _ROUNDED_HALF_UP, "=r,f,f", [product.to(gl.float32), factor], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def maxima_of_products(acc, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Maxima of the products that one thread holds of a row, in their place."""
    parts = gl.max(gl.reshape(acc, [ROWS, COLUMNS // 8, 8]), axis=1)
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [parts], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def distances(
    largest, B, S, D, S2, D2, SCORES: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """What `scores_of_pairs` takes for rows whose largest logit is kept as `largest` (docs/spec.md)."""
    raised, reach, near_raised, near, least = packed_logits.distances(largest, B, S, D, S2, D2, SCORES)
    return (
        beside_pairs((raised & 0xFFFF) * 0x10001, ROWS, COLUMNS, LAYOUT),
        beside_pairs(reach * 0x10001, ROWS, COLUMNS, LAYOUT),
        beside_pairs((near_raised & 0xFFFF) * 0x10001, ROWS, COLUMNS, LAYOUT),
        beside_pairs(near * 0x10001, ROWS, COLUMNS, LAYOUT),
        S, S2, beside_pairs(least * 0x10001, ROWS, COLUMNS, LAYOUT),
    )  # fmt: skip


@gluon.jit
def scores_of_pairs(pairs, line, SCORES: gl.constexpr):
    """Scores (eq. 2, 3) of one line, or uint8 scores of two lines, two to a word."""
    raised, limit, near_raised, near, S, S2, least = line
    if SCORES == ONE_LINE:
        pairs = gl.inline_asm_elementwise(
            _PAIR_OF_SCORES, "=r,r,r,r,r,r", [pairs, raised, limit, S, least],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        pairs = gl.inline_asm_elementwise(
            _PAIR_OF_BYTES, "=r,r,r,r,r,r,r,r,r", [pairs, raised, limit, near_raised, near, S, S2, least],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    return pairs


@gluon.jit
def plus(parts, more):
    """The sum of what `sums_of_pairs` gave, in its place."""
    return gl.inline_asm_elementwise(
        "add.s32 $0, $1, $2;", "=r,r,r", [parts, more], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def as_operand(pairs, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """The halves of words as float16 columns; no instruction."""
    return gl.convert_layout(packed_logits.as_operand(pairs, ROWS, COLUMNS), LAYOUT, assert_trivial=True)


@gluon.jit
def reciprocal_of(Z, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """1 / Z in two parts, in which `divided` multiplies: this much can be ready before the sums."""
    Z = gl.maximum(Z, 1).to(gl.float32) * STEP
    upper = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [Z], dtype=gl.float32, is_pure=True, pack=1
    )
    lower = gl.fma(-Z, upper, gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, LAYOUT))) * upper
    return upper[:, None] + gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT), lower


@gluon.jit
def divided(sums, reciprocal):
    """N / Z correctly rounded, as in `steps.py`."""
    upper, lower = reciprocal
    return gl.fma(sums, upper, sums * lower[:, None])


@gluon.jit
def write_block(
    sums, reciprocal, v_scale, out_ptr, first,
    ROWS: gl.constexpr, BLOCK_D: gl.constexpr, ROWS_OF_WARPS: gl.constexpr,
):  # fmt: skip
    """N / Z of a block of queries, of reordered columns, from place `first` on."""
    # A thread holds two runs of eight columns, where its sums had eight runs of two.
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        ROWS_OF_WARPS, [], [ROWS, BLOCK_D],
    )  # fmt: skip
    result = reordered((divided(sums, reciprocal) * v_scale).to(out_ptr.dtype.element_ty), ROWS)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, OUT))
    place = out_ptr + (first + (row[:, None] * BLOCK_D + column[None, :]))
    gl.store(place, gl.convert_layout(result, OUT, assert_trivial=True))
