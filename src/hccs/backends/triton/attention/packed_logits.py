"""Two logits to a 32-bit word: the steps of attention between its two products, in Triton.

What limits the speed is the work per logit, so two of them travel together from the requantisation on, as
16-bit integers: Hopper adds, clamps and compares two of them at a time. The bits of an integer up to 2047
are also a float16, 2^-24 times as large: the words of scores are an operand of the float16 tensor cores as
they are, and their sums, at most 2^22 steps of 2^-24, are exact in float32. `HOPPER` chooses the
instructions; without it the same integers come from plain Triton, on any GPU and in its interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.codes import APART, BY_BLOCK, BYTES, ONE_LINE, PACKED, SHIFTED
from hccs.backends.triton.formulas import reciprocal, wide_reciprocal

# A logit x is kept as ZERO + x: the bits of the float16 1152 + x.
ZERO = tl.constexpr(0x6480)
LEAST = tl.constexpr(0x6400)
LARGEST = tl.constexpr(0x64FF)
LOWEST = tl.constexpr(-(2**31))
STEP = tl.constexpr(2.0**-24)

# Between 1024 and 2048 a float16 has no fraction bits: after a multiply-add that rounds down, conversion
# towards zero is the floor. Logits below -128 come out somewhere below LEAST, those above 127 above LARGEST:
# their distances saturate later.
_PAIR_OF_LOGITS = tl.constexpr("""{
    .reg .f32 x, y;
    cvt.rn.f32.s32 x, $1;
    cvt.rn.f32.s32 y, $2;
    fma.rm.f32 x, x, $3, 0f44901000;
    fma.rm.f32 y, y, $3, 0f44901000;
    cvt.rz.relu.f16x2.f32 $0, y, x;
}""")
# t = clamp(x - m' + D', 0, D'), then s = S*t + (B - S*D') in both halves.
_PAIR_OF_SCORES = tl.constexpr("""{
    .reg .b32 t;
    add.s16x2 t, $1, $2;
    min.relu.s16x2 t, t, $3;
    mad.lo.s32 $0, t, $4, $5;
}""")
# The second line's distance likewise; scores of BYTES lie in the upper bytes of the halves.
_TWO_LINES = """
    .reg .b32 t, u, s;
    add.s16x2 t, $1, $2;
    min.relu.s16x2 t, t, $3;
    add.s16x2 u, $1, $4;
    min.relu.s16x2 u, u, $5;
    mad.lo.s32 s, t, $6, $8;
    mad.lo.s32 s, u, $7, s;
"""
_PAIR_OF_TWO_LINES = tl.constexpr("{" + _TWO_LINES + "mov.b32 $0, s; }")
_PAIR_OF_BYTES = tl.constexpr("{" + _TWO_LINES + "prmt.b32 $0, s, 0, 0x4341; }")
# A byte under the exponent of 1024 is 1024 + byte.
_HALVES_OF_BYTES = tl.constexpr("""{
    .reg .b32 x, y, z;
    xor.b32 x, $2, 0x80808080;
    prmt.b32 y, x, 0x64646464, 0x4140;
    prmt.b32 z, x, 0x64646464, 0x4342;
    mov.b32 x, 0x64806480;
    sub.rn.f16x2 $0, y, x;
    sub.rn.f16x2 $1, z, x;
}""")
# Adding 1.5 * 2^23 rounded down is the floor, and leaves it in the mantissa.
_ROUNDED_HALF_UP = tl.constexpr("""{
    .reg .f32 x;
    .reg .b32 t;
    fma.rm.f32 x, $1, $2, 0f3F000000;
    min.f32 x, x, 0f42FF0000;
    max.f32 x, x, 0fC3000000;
    add.rm.f32 x, x, 0f4B400000;
    mov.b32 t, x;
    sub.s32 $0, t, 0x4B400000;
}""")


@triton.jit
def as_factor(multiplier, shift):
    """multiplier * 2^-shift, exact in float32."""
    return multiplier.to(tl.float32) * ((127 - shift) << 23).to(tl.float32, bitcast=True)


@triton.jit
def round_half_up(value, multiplier, shift, HOPPER: tl.constexpr):
    """clamp(floor(value * multiplier / 2^shift + 1/2), -128, 127) of integers in float32."""
    if HOPPER:
        rounded = tl.inline_asm_elementwise(
            _ROUNDED_HALF_UP, "=r,f,f", [value, as_factor(multiplier, shift)],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        shift = tl.minimum(shift, 62)  # beyond which everything is 0
        wide = value.to(tl.int64) * multiplier + (tl.full([], 1, tl.int64) << (shift - 1))
        rounded = tl.minimum(tl.maximum(wide >> shift, -128), 127).to(tl.int32)
    return rounded


@triton.jit
def as_halves(v, HOPPER: tl.constexpr):
    """int8 as float16."""
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
def word_of_logits(even, odd, multiplier, shift, HOPPER: tl.constexpr):
    """Words of two logits, the first in the low half."""
    if HOPPER:
        pairs = tl.inline_asm_elementwise(
            _PAIR_OF_LOGITS, "=r,r,r,f", [even, odd, as_factor(multiplier, shift)],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        even = round_half_up(even, multiplier, shift, False) + ZERO
        odd = round_half_up(odd, multiplier, shift, False) + ZERO
        pairs = even | (odd << 16)
    return pairs


@triton.jit
def logits_of_pairs(
    acc, multiplier, shift, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HOPPER: tl.constexpr
):  # fmt: skip
    """Words of two neighbouring keys, the even one in the low half."""
    even, odd = even_and_odd(acc, ROWS, COLUMNS)
    return word_of_logits(even, odd, multiplier, shift, HOPPER)


@triton.jit
def ones_below(limit, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HOPPER: tl.constexpr):
    """Words of ones in the halves whose key lies below its row's limit; keys are counted from `first`."""
    key = tl.arange(0, COLUMNS)
    bits, _ = even_and_odd((16 * (limit - first))[:, None] + (-16 * key)[None, :], ROWS, COLUMNS)
    bits = tl.maximum(bits, 0)
    if HOPPER:  # which, unlike Triton, can shift by 32 and more
        zeros = tl.inline_asm_elementwise(
            "shl.b32 $0, -1, $1;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        zeros = tl.where(bits >= 32, 0, tl.where(bits > 0, -65536, -1))
    return ~zeros


@triton.jit
def larger_of_pairs(a, b):
    """The larger of each half."""
    return tl.inline_asm_elementwise(
        "max.s16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def larger_of_plain_pairs(a, b):
    """The same without the instruction, of halves below 2^15."""
    return tl.maximum(a & 0xFFFF, b & 0xFFFF) | (tl.maximum(a >> 16, b >> 16) << 16)


@triton.jit
def maximum_of_pairs(pairs, HOPPER: tl.constexpr):
    """The largest half of each row."""
    if HOPPER:
        both = tl.reduce(pairs, 1, larger_of_pairs)
        largest = tl.maximum(both & 0xFFFF, both >> 16)
    else:
        largest = tl.max(tl.maximum(pairs & 0xFFFF, pairs >> 16), axis=1)
    return largest


@triton.jit
def sum_of_pairs(pairs, SUMS: tl.constexpr):
    """Per row; halves are added as such where none can overflow."""
    if SUMS == APART:
        total = tl.sum((pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF), axis=1)
    else:
        both = tl.sum(pairs, axis=1)
        total = (both & 0xFFFF) + ((both >> 16) & 0xFFFF)
    return total


@triton.jit
def distances(largest, B, S, D, S2, D2, SCORES: tl.constexpr):
    """For a row whose largest logit is kept as `largest` (docs/spec.md).

    D' - m' and D' of either line, and the score beyond both, B - S*D' - S2*D2'.
    """
    largest = tl.minimum(tl.maximum(largest, LEAST), LARGEST)
    limit = tl.minimum(largest - LEAST, D)
    if SCORES == ONE_LINE:
        line = (limit - largest, limit, limit, limit, B - S * limit)
    else:
        near = tl.minimum(largest - LEAST, D2)
        line = (limit - largest, limit, near - largest, near, B - S * limit - S2 * near)
    return line


@triton.jit
def scores_of_pairs(pairs, line, S, S2, f, SCORES: tl.constexpr, HOPPER: tl.constexpr):
    """Scores (eq. 2, 3), two to a word."""
    raised, limit, near_raised, near, least = line
    if HOPPER:
        raised, limit, least = (raised & 0xFFFF) * 0x10001, limit * 0x10001, least * 0x10001
        if SCORES == ONE_LINE:
            scores = tl.inline_asm_elementwise(
                _PAIR_OF_SCORES, "=r,r,r,r,r,r", [pairs, raised, limit, S, least],
                dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            CODE: tl.constexpr = _PAIR_OF_BYTES if SCORES == BYTES else _PAIR_OF_TWO_LINES
            scores = tl.inline_asm_elementwise(
                CODE, "=r,r,r,r,r,r,r,r,r",
                [pairs, raised, limit, (near_raised & 0xFFFF) * 0x10001, near * 0x10001, S, S2, least],
                dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
    else:
        even, odd = pairs & 0xFFFF, pairs >> 16
        upper = least + S * tl.minimum(tl.maximum(odd + raised, 0), limit)
        lower = least + S * tl.minimum(tl.maximum(even + raised, 0), limit)
        if SCORES != ONE_LINE:
            upper += S2 * tl.minimum(tl.maximum(odd + near_raised, 0), near)
            lower += S2 * tl.minimum(tl.maximum(even + near_raised, 0), near)
        if SCORES == BYTES:
            lower, upper = lower >> 8, upper >> 8
        scores = lower | (upper << 16)
    if SCORES == SHIFTED:
        scores = (scores >> f) & ((0xFFFF >> f) * 0x10001)
    return scores


@triton.jit
def probabilities_of_pairs(pairs, Z, RECIPROCAL: tl.constexpr, IS_WIDE: tl.constexpr):
    """p_hat of the uint8 modes (eq. 7, 8, 9), two to a word."""
    Z = tl.maximum(Z, 1)
    if IS_WIDE:
        rho, k = wide_reciprocal(Z, True, RECIPROCAL)
        shift = (k + 7)[:, None]
    else:
        rho, shift = reciprocal(Z.to(tl.float32), True, RECIPROCAL).to(tl.int32), 15
    even = tl.minimum(((pairs & 0xFFFF) * rho[:, None]) >> shift, 255)
    odd = tl.minimum(((pairs >> 16) * rho[:, None]) >> shift, 255)
    return even | (odd << 16)


@triton.jit
def as_operand(pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The halves of words as float16 columns; no instruction."""
    even = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    odd = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.join(even, odd), [ROWS, COLUMNS])


@triton.jit
def times_values(
    pairs, v, sums, HIGH: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """sums + scores @ v in steps of 2^-24; in two planes of bits where scores exceed 2047.

    LONG sums, which may leave float32, are int32: products of 128 keys and ten bits stay within 2^24.
    """
    if HIGH:
        upper = tl.dot(as_operand((pairs >> 10) & 0x3F003F, ROWS, COLUMNS), v, out_dtype=tl.float32)
        if LONG:
            sums += in_steps(upper) * 1024
        else:
            sums += 1024.0 * upper
        pairs = pairs & 0x03FF03FF
    if LONG:
        sums += in_steps(tl.dot(as_operand(pairs, ROWS, COLUMNS), v, out_dtype=tl.float32))
    else:
        sums = tl.dot(as_operand(pairs, ROWS, COLUMNS), v, sums, out_dtype=tl.float32)
    return sums


@triton.jit
def in_steps(sums):
    """Steps of 2^-24 as int32."""
    return (sums / STEP).to(tl.int32)


@triton.jit
def beside_pairs(row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One value per row in the layout of `even_and_odd`, which a plain broadcast would not have."""
    value, _ = even_and_odd(tl.broadcast_to(row[:, None], [ROWS, COLUMNS]), ROWS, COLUMNS)
    return value


@triton.jit
def maxima(acc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Maxima of every eighth column, [ROWS, 8]: one thread holds them, so that loops need no shuffles."""
    return tl.max(tl.reshape(acc, [ROWS, COLUMNS // 8, 8]), axis=1)


@triton.jit
def maxima_of_pairs(pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HOPPER: tl.constexpr):
    """The same for words of two logits, [ROWS, 4]."""
    parts = tl.reshape(pairs, [ROWS, COLUMNS // 8, 4])
    return tl.reduce(parts, 1, larger_of_pairs) if HOPPER else tl.reduce(parts, 1, larger_of_plain_pairs)


@triton.jit
def sums_of_pairs(pairs, SUMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same for scores, [ROWS, 4]: words of two sums if PACKED, else sums."""
    if SUMS == APART:
        pairs = (pairs & 0xFFFF) + ((pairs >> 16) & 0xFFFF)
    parts = tl.sum(tl.reshape(pairs, [ROWS, COLUMNS // 8, 4]), axis=1)
    if SUMS == BY_BLOCK:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    return parts


@triton.jit
def total_of_parts(parts, SUMS: tl.constexpr):
    """Per row, of what `sums_of_pairs` gave."""
    if SUMS == PACKED:
        parts = (parts & 0xFFFF) + ((parts >> 16) & 0xFFFF)
    return tl.sum(parts, axis=1)


@triton.jit
def ones_of_bits(bits, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HOPPER: tl.constexpr):
    """Words of ones in the halves whose key has its bit set; `steps.packed` packs the bits, [ROWS, 4]."""
    column = tl.arange(0, COLUMNS // 8) + (first % 128) // 8
    words = tl.reshape(bits[:, None, :] << column[None, :, None], [ROWS, COLUMNS // 2])
    if HOPPER:  # a byte of ones where the sign of another says so
        ones = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $1, 0xBB99;", "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        ones = ((words >> 31) << 16) | (((words << 16) >> 31) & 0xFFFF)
    return ones
