"""Two logits to a 32-bit word: the steps of attention between its two products, in Triton.

What limits the speed is the work per logit, so two of them travel together from the requantisation on, as
16-bit integers of which Hopper adds, clamps and compares two at a time. The bits of an integer up to 2047
are also a float16, 2^-24 times as large: the words of scores are an operand of the float16 tensor cores as
they are, and their sums, at most 2^22 steps of 2^-24, are exact in float32. `HOPPER` chooses the
instructions; without it the same integers come from plain Triton, on any GPU and in its interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.formulas import reciprocal

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
def logits_of_pairs(
    acc, multiplier, shift, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HOPPER: tl.constexpr
):  # fmt: skip
    """Words of two neighbouring keys, the even one in the low half."""
    even, odd = even_and_odd(acc, ROWS, COLUMNS)
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
def maximum_of_pairs(pairs, HOPPER: tl.constexpr):
    """Per row."""
    if HOPPER:
        both = tl.reduce(pairs, 1, larger_of_pairs)
        largest = tl.maximum(both & 0xFFFF, both >> 16)
    else:
        largest = tl.max(tl.maximum(pairs & 0xFFFF, pairs >> 16), axis=1)
    return largest


@triton.jit
def sum_of_pairs(pairs):
    """Per row. Neither half overflows: Z <= 32767."""
    both = tl.sum(pairs, axis=1)
    return (both & 0xFFFF) + (both >> 16)


@triton.jit
def distances(largest, B, S, D):
    """For a row whose largest logit is kept as `largest`: D' - m', D' and B - S*D' (docs/spec.md)."""
    largest = tl.minimum(tl.maximum(largest, LEAST), LARGEST)
    limit = tl.minimum(largest - LEAST, D)
    return limit - largest, limit, B - S * limit


@triton.jit
def scores_of_pairs(pairs, raised, limit, least, S, HOPPER: tl.constexpr):
    """Scores (eq. 2, 3), again two to a word."""
    if HOPPER:
        scores = tl.inline_asm_elementwise(
            _PAIR_OF_SCORES, "=r,r,r,r,r,r",
            [pairs, (raised & 0xFFFF) * 0x10001, limit * 0x10001, S, least * 0x10001],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        even = least + S * tl.minimum(tl.maximum((pairs & 0xFFFF) + raised, 0), limit)
        odd = least + S * tl.minimum(tl.maximum((pairs >> 16) + raised, 0), limit)
        scores = even | (odd << 16)
    return scores


@triton.jit
def probabilities_of_pairs(pairs, Z, IS_CLB: tl.constexpr):
    """p_hat of the uint8 modes (eq. 7, 8, 9), again two to a word."""
    rho = reciprocal(tl.maximum(Z, 1).to(tl.float32), True, IS_CLB).to(tl.int32)[:, None]
    even = tl.minimum(((pairs & 0xFFFF) * rho) >> 15, 255)
    odd = tl.minimum(((pairs >> 16) * rho) >> 15, 255)
    return even | (odd << 16)


@triton.jit
def as_operand(pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The halves of words as float16 columns; no instruction."""
    even = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    odd = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.join(even, odd), [ROWS, COLUMNS])


@triton.jit
def bits_of_half(byte):
    """The float16 of an int8 that lies in the upper byte of a word."""
    return (byte >> 24).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def halves_of_words(words, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, HOPPER: tl.constexpr):
    """Words of four int8 as rows of float16."""
    if HOPPER:
        lower, upper = tl.inline_asm_elementwise(
            _HALVES_OF_BYTES, "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        lower = bits_of_half(words << 24) | (bits_of_half(words << 16) << 16)
        upper = bits_of_half(words << 8) | (bits_of_half(words) << 16)
    return as_operand(tl.reshape(tl.join(lower, upper), [KEYS, BLOCK_D // 2]), KEYS, BLOCK_D)


@triton.jit
def times_values(pairs, v, sums, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """sums + scores @ v in steps of 2^-24; in two planes of bits where scores exceed 2047."""
    if WIDE:
        upper = as_operand((pairs >> 10) & 0x3F003F, ROWS, COLUMNS)
        sums += 1024.0 * tl.dot(upper, v, out_dtype=tl.float32)
        pairs = pairs & 0x03FF03FF
    return tl.dot(as_operand(pairs, ROWS, COLUMNS), v, sums, out_dtype=tl.float32)


@triton.jit
def beside_pairs(row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One value per row in the layout of `even_and_odd`, which a plain broadcast would not have."""
    value, _ = even_and_odd(tl.broadcast_to(row[:, None], [ROWS, COLUMNS]), ROWS, COLUMNS)
    return value


@triton.jit
def maxima(acc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of every eighth column, [ROWS, 8]: those that one thread holds, so that loops do without shuffles."""
    return tl.max(tl.reshape(acc, [ROWS, COLUMNS // 8, 8]), axis=1)


@triton.jit
def sums_of_pairs(pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same for scores, [ROWS, 4]."""
    return tl.sum(tl.reshape(pairs, [ROWS, COLUMNS // 8, 4]), axis=1)
