"""Full rows to uint8, four logits to a 32-bit word, at the speed of memory: one line, and the wide form.

A row kernel of the uint8 modes moves two bytes an element, so that the speed of memory leaves about a dozen
instructions for each. Hopper works on two 16-bit halves at once: a word is split into its even and its odd
bytes, and maximum, distance, clamp and sum run on pairs. In the int16 modes, which move three bytes, the
general kernel is as fast.

Every thread that holds a part of a row computes what belongs to the row, so a thread holds two parts of one
row rather than one part of each of two rows. A probability of the wide form is (s * rho) >> j, where every
row has its own shift j: the reciprocal is moved up so that it ends where one instruction gathers the bytes
of several.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hccs.backends.triton.codes import BY_BLOCK, BYTES, DIVISION, LEADING_BIT, PACKED, SHIFTED
from hccs.backends.triton.devices import HOPPER, INTERPRETED, capability
from hccs.backends.triton.formulas import LINEAR, reciprocal, wide_reciprocal

MOST_COLUMNS = 1024
"""D <= 127: the sum of half a row's distances, in sixteen bits, allows no more."""

# Triton's interpreter knows no machine instructions: there each of them is spelled out.
SPELLED_OUT = tl.constexpr(INTERPRETED)


def can_run(device: torch.device) -> bool:
    """Whether the device has instructions on pairs: compute capability 9.0 on; the interpreter has all."""
    return INTERPRETED or capability(device) >= HOPPER


@triton.jit
def of_a_word(CODE: tl.constexpr, a):
    """What one instruction makes of a word."""
    return tl.inline_asm_elementwise(CODE, "=r,r", [a], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def of_two_words(CODE: tl.constexpr, a, b):
    """What one instruction makes of two words."""
    return tl.inline_asm_elementwise(CODE, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def larger_halves(a, b):
    """The larger of each pair of unsigned 16-bit halves."""
    if SPELLED_OUT:
        upper = tl.maximum((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF)
        word = tl.maximum(a & 0xFFFF, b & 0xFFFF) | (upper << 16)
    else:
        word = of_two_words("max.u16x2 $0, $1, $2;", a, b)
    return word


@triton.jit
def smaller_halves(a, b):
    """The smaller of each pair of unsigned 16-bit halves."""
    if SPELLED_OUT:
        upper = tl.minimum((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF)
        word = tl.minimum(a & 0xFFFF, b & 0xFFFF) | (upper << 16)
    else:
        word = of_two_words("min.u16x2 $0, $1, $2;", a, b)
    return word


@triton.jit
def split(word):
    """The even and the odd bytes of a word, each in a half of its own."""
    if SPELLED_OUT:
        even, odd = word & 0x00FF00FF, (word >> 8) & 0x00FF00FF
    else:
        even = of_a_word("prmt.b32 $0, $1, 0, 0x4240;", word)
        odd = of_a_word("prmt.b32 $0, $1, 0, 0x4341;", word)
    return even, odd


_SCORES_TIMES_RECIPROCAL = """
    .reg .b32 a, b, c, d;
    and.b32 a, $1, 0xffff;
    shr.u32 b, $1, 16;
    and.b32 c, $2, 0xffff;
    shr.u32 d, $2, 16;
    mad.lo.s32 a, a, $4, $3;
    mad.lo.s32 b, b, $4, $3;
    mad.lo.s32 c, c, $4, $3;
    mad.lo.s32 d, d, $4, $3;
    prmt.b32 a, a, b, 0x7632;
    prmt.b32 c, c, d, 0x7632;
"""
_SATURATE = ".reg .b32 top; mov.b32 top, 0x00ff00ff; min.u16x2 a, a, top; min.u16x2 c, c, top;"
_STORE_BYTES = "prmt.b32 $0, a, c, 0x6240;"
ONE_LINE_EXACT = tl.constexpr("{" + _SCORES_TIMES_RECIPROCAL + _STORE_BYTES + "}")
ONE_LINE_SATURATED = tl.constexpr("{" + _SCORES_TIMES_RECIPROCAL + _SATURATE + _STORE_BYTES + "}")


@triton.jit
def outputs(even, odd, base, slope, RECIPROCAL: tl.constexpr):
    """(base - slope * delta) >> 16, at most 255, for the four distances of a word, as bytes in order."""
    if SPELLED_OUT:
        word = tl.minimum((base - slope * (even & 0xFFFF)) >> 16, 255)
        word |= tl.minimum((base - slope * (odd & 0xFFFF)) >> 16, 255) << 8
        word |= tl.minimum((base - slope * (even >> 16)) >> 16, 255) << 16
        word |= tl.minimum((base - slope * (odd >> 16)) >> 16, 255) << 24
    else:
        CODE: tl.constexpr = ONE_LINE_EXACT if RECIPROCAL == DIVISION else ONE_LINE_SATURATED
        word = tl.inline_asm_elementwise(
            CODE, "=r,r,r,r,r", [even, odd, base, -slope], dtype=tl.int32, is_pure=True, pack=1
        )
    return word


@triton.jit
def block_of(BLOCK_ROWS: tl.constexpr):
    """A program's first row and its head, of a grid (blocks of a head, heads, repetitions of them)."""
    head = tl.program_id(1)
    group = tl.program_id(2) * tl.num_programs(1) + head
    block = group.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    return block * BLOCK_ROWS, head


@triton.jit
def places(PARTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Places of the words of each row's first part in a block."""
    return tl.arange(0, BLOCK_ROWS)[:, None] * WORDS + tl.arange(0, WORDS // PARTS)[None, :]


@triton.jit
def load_parts(ptr, PARTS: tl.constexpr, WORDS: tl.constexpr):
    """The words [rows, words of a part, parts] whose first parts are at `ptr`: a thread holds both parts."""
    words = tl.load(ptr)
    return words[:, :, None] if PARTS == 1 else tl.join(words, tl.load(ptr + WORDS // 2))


@triton.jit
def store_parts(ptr, words, PARTS: tl.constexpr, WORDS: tl.constexpr):
    """Store what `load_parts` loads."""
    if PARTS == 1:
        tl.store(ptr, tl.reshape(words, ptr.shape))
    else:
        left, right = tl.split(words)
        tl.store(ptr, left)
        tl.store(ptr + WORDS // 2, right)


@triton.jit
def full_rows(
    x_ptr, theta_ptr, out_ptr, RECIPROCAL: tl.constexpr, PARTS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of 4 * WORDS logits, blocks inside one head, no mask; `out_ptr` steps by four outputs."""
    first, head = block_of(BLOCK_ROWS)
    place = places(PARTS, BLOCK_ROWS, WORDS)
    # The sign bits turned, the bytes are x + 128 and their order is that of unsigned numbers.
    even, odd = split(load_parts(x_ptr + first * WORDS + place, PARTS, WORDS) ^ -0x7F7F7F80)
    theta_ptr += head * 3
    B, S, D = tl.load(theta_ptr), tl.load(theta_ptr + 1), tl.load(theta_ptr + 2)
    pair = tl.reduce(tl.reduce(larger_halves(even, odd), 2, larger_halves), 1, larger_halves)
    m = (tl.maximum(pair & 0xFFFF, pair >> 16) * 0x10001)[:, None, None]
    # No half of m - x borrows from the other: m is the largest. (eq. 1, 2)
    even = smaller_halves(m - even, D * 0x10001)
    odd = smaller_halves(m - odd, D * 0x10001)
    # (eq. 3, 5)
    total = tl.sum(tl.sum(even + odd, axis=2), axis=1)
    Z = 4 * WORDS * B - S * ((total & 0xFFFF) + ((total >> 16) & 0xFFFF))
    rho = reciprocal(Z.to(tl.float32), True, RECIPROCAL)
    base, slope = (B * rho).to(tl.int32)[:, None, None], (S * rho).to(tl.int32)[:, None, None]
    # s * rho / 2^15 (eq. 7, 8), moved to where the upper half of a word begins.
    four = outputs(even, odd, base << 1, slope << 1, RECIPROCAL)
    store_parts(out_ptr + first * WORDS + place, four, PARTS, WORDS)


# Even and odd bytes as signed halves: a selector's fourth bit fills a byte with the sign of the one it names.
EVEN = tl.constexpr("prmt.b32 $0, $1, 0, 0xa280;")
ODD = tl.constexpr("prmt.b32 $0, $1, 0, 0xb391;")
LARGER = tl.constexpr("max.s16x2 $0, $1, $2;")
# t = clamp(x - m + D, 0, D), one instruction for a pair; then S*t + S2*t2 + (B - S*D - S2*D2).
SCORES_OF_PAIR = tl.constexpr("""{
    .reg .b32 t, u;
    add.s16x2 t, $1, $2;
    min.relu.s16x2 t, t, $3;
    add.s16x2 u, $1, $4;
    min.relu.s16x2 u, u, $5;
    mad.lo.s32 t, t, $6, $8;
    mad.lo.s32 $0, u, $7, t;
}""")
# The lower half in both halves.
BOTH_HALVES = tl.constexpr("prmt.b32 $0, $1, 0, 0x1010;")
# The upper bytes of four halves, in the order of their logits.
GATHERED = tl.constexpr("prmt.b32 $0, $1, $2, 0x7351;")
SUM_OF_HALVES = tl.constexpr("dp2a.lo.u32.u32 $0, $1, 0x0101, 0;")
SUM_OF_BYTES = tl.constexpr("dp4a.u32.u32 $0, $1, 0x01010101, 0;")
# M is the mantissa of Z brought to 16 bits, rounded up; the quotient comes a little too large, so that it is
# the floor or one more, which the sign of its remainder tells. Sums with 2^23 leave integers in mantissas.
QUOTIENT = tl.constexpr("""{
    .reg .f32 m, up, r, q;
    .reg .b32 b, n, i, s;
    and.b32 b, $1, 0x007fffff;
    or.b32 b, b, 0x47000000;
    mov.b32 m, b;
    add.rp.f32 up, m, 0f4B000000;
    add.rn.f32 m, up, 0fCB000000;
    rcp.approx.ftz.f32 r, m;
    fma.rm.f32 q, r, 0f4E7F0010, 0f4B000000;
    mov.b32 n, up;
    sub.s32 n, 0x4B000000, n;
    mov.b32 i, q;
    sub.s32 i, i, 0x4B000000;
    mad.lo.s32 s, i, n, 1069547520;
    shr.s32 s, s, 31;
    add.s32 $0, i, s;
}""")
# Moved up by so much less the exponent of a float. Where that is negative nothing is left, as it should be:
# those quotients make 0 of every score up to 1023.
_RAISED = "{{ .reg .b32 t; shr.u32 t, $2, 23; sub.s32 t, {}, t; shl.b32 $0, $1, t; }}"
BY_16 = tl.constexpr(_RAISED.format(127 + 16))
BY_17 = tl.constexpr(_RAISED.format(127 + 17))
BY_23 = tl.constexpr(_RAISED.format(127 + 23))

_HALVES_APART = """
    .reg .b32 a, b, c, d;
    prmt.b32 a, $1, 0, 0x4410;
    prmt.b32 b, $1, 0, 0x4432;
    prmt.b32 c, $2, 0, 0x4410;
    prmt.b32 d, $2, 0, 0x4432;
"""
_UPPER_BYTES_APART = """
    .reg .b32 a, b, c, d;
    prmt.b32 a, $1, 0, 0x4441;
    prmt.b32 b, $1, 0, 0x4443;
    prmt.b32 c, $2, 0, 0x4441;
    prmt.b32 d, $2, 0, 0x4443;
"""
_TIMES = "mul.lo.u32 a, a, $3; mul.lo.u32 b, b, $3; mul.lo.u32 c, c, $3; mul.lo.u32 d, d, $3;"
_MOVED_DOWN = "shr.u32 a, a, $4; shr.u32 b, b, $4; shr.u32 c, c, $4; shr.u32 d, d, $4;"
# Results in the top bytes.
_TOP_BYTES = "prmt.b32 a, a, c, 0x0073; prmt.b32 b, b, d, 0x0073; prmt.b32 $0, a, b, 0x5410;"
# Results up to 511 in the upper halves, saturated two at a time.
_SATURATED = """
    .reg .b32 top;
    mov.b32 top, 0x00ff00ff;
    prmt.b32 a, a, b, 0x7632;
    prmt.b32 c, c, d, 0x7632;
    min.u16x2 a, a, top;
    min.u16x2 c, c, top;
    prmt.b32 $0, a, c, 0x6240;
"""
# The same with seven bits below them.
_SATURATED_ABOVE = """
    .reg .b32 top;
    mov.b32 top, 0x7fff7fff;
    prmt.b32 a, a, b, 0x7632;
    prmt.b32 c, c, d, 0x7632;
    min.u16x2 a, a, top;
    min.u16x2 c, c, top;
    shl.b32 a, a, 1;
    shl.b32 c, c, 1;
    prmt.b32 $0, a, c, 0x7351;
"""
_OF_HALVES, _OF_BYTES = "{" + _HALVES_APART + _TIMES, "{" + _UPPER_BYTES_APART + _TIMES
EXACT = tl.constexpr(_OF_HALVES + _TOP_BYTES + "}")
EXACT_LARGE = tl.constexpr(_OF_HALVES + _MOVED_DOWN + _TOP_BYTES + "}")
EXACT_BYTES = tl.constexpr(_OF_BYTES + _TOP_BYTES + "}")
SATURATED = tl.constexpr(_OF_HALVES + _SATURATED + "}")
SATURATED_LARGE = tl.constexpr(_OF_HALVES + _SATURATED_ABOVE + "}")
SATURATED_BYTES = tl.constexpr(_OF_BYTES + _SATURATED + "}")
SATURATED_BYTES_LARGE = tl.constexpr(_OF_BYTES + _SATURATED_ABOVE + "}")


@triton.jit
def signed_halves(word):
    """The even and the odd bytes of a word, each with its sign in a half of its own."""
    if SPELLED_OUT:
        even = (((word << 24) >> 24) & 0xFFFF) | ((word << 8) >> 24 << 16)
        odd = (((word << 16) >> 24) & 0xFFFF) | (word >> 24 << 16)
    else:
        even, odd = of_a_word(EVEN, word), of_a_word(ODD, word)
    return even, odd


@triton.jit
def larger_signed_halves(a, b):
    """The larger of each pair of signed 16-bit halves."""
    if SPELLED_OUT:
        lower = tl.maximum((a << 16) >> 16, (b << 16) >> 16) & 0xFFFF
        word = lower | (tl.maximum(a >> 16, b >> 16) << 16)
    else:
        word = of_two_words(LARGER, a, b)
    return word


@triton.jit
def in_both_halves(value):
    """The lower half of a word in both halves."""
    return (value & 0xFFFF) * 0x10001 if SPELLED_OUT else of_a_word(BOTH_HALVES, value)


@triton.jit
def pair_of_scores(x, m, D, D2, S, S2, least):
    """least + S*max(x - m + D, 0) + S2*max(x - m + D2, 0) of two logits, each in a half."""
    if SPELLED_OUT:
        upper = S * tl.maximum((x >> 16) - m + D, 0) + S2 * tl.maximum((x >> 16) - m + D2, 0)
        lower = (x << 16) >> 16
        lower = S * tl.maximum(lower - m + D, 0) + S2 * tl.maximum(lower - m + D2, 0)
        scores = least + lower + (upper << 16)
    else:
        scores = tl.inline_asm_elementwise(
            SCORES_OF_PAIR, "=r,r,r,r,r,r,r,r,r",
            [
                x, in_both_halves(D - m), in_both_halves(D), in_both_halves(D2 - m), in_both_halves(D2),
                S, S2, least,
            ],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return scores


@triton.jit
def sum_of_halves(pair):
    """Of a word."""
    if SPELLED_OUT:
        total = (pair & 0xFFFF) + ((pair >> 16) & 0xFFFF)
    else:
        total = of_a_word(SUM_OF_HALVES, pair)
    return total


@triton.jit
def row_sums(even, odd, SCORES: tl.constexpr, SUMS: tl.constexpr):
    """Of scores [rows, words of a part, parts]; halves are added as such in rows, in parts or nowhere."""
    if SCORES == BYTES:
        if SPELLED_OUT:
            even, odd = (even >> 8) & 0x00FF00FF, (odd >> 8) & 0x00FF00FF
            four = even + odd
            four = (four & 0xFFFF) + (four >> 16)
        else:
            four = of_a_word(SUM_OF_BYTES, of_two_words(GATHERED, even, odd))
        total = tl.sum(tl.sum(four, axis=2), axis=1)
    elif SUMS == PACKED:
        total = sum_of_halves(tl.sum(tl.sum(even + odd, axis=2), axis=1))
    elif SUMS == BY_BLOCK:
        total = tl.sum(sum_of_halves(tl.sum(even + odd, axis=2)), axis=1)
    else:
        total = tl.sum(tl.sum(sum_of_halves(even) + sum_of_halves(odd), axis=2), axis=1)
    return total


@triton.jit
def factors(Z, RECIPROCAL: tl.constexpr, LARGE: tl.constexpr):
    """What scores are multiplied by and then moved down by: rho and k of `wide_reciprocal`, spelled out.

    Machine instructions take rho moved up, so that a result begins at the upper half of a product, at its top
    byte in `u8_div`. Reciprocals that are no quotients have seven zeros at their end, which LARGE sums need.
    """
    if SPELLED_OUT:
        raised, lowered = wide_reciprocal(Z, True, RECIPROCAL)
    else:
        bits = Z.to(tl.float32).to(tl.int32, bitcast=True)
        lowered = bits
        if RECIPROCAL != DIVISION:
            rho = bits * 0 + 255
            if RECIPROCAL != LEADING_BIT:
                rho = (LINEAR - 0x4000 - ((bits >> 9) & 0x3FFF)) * 255 >> 15
            raised = of_two_words(BY_23 if LARGE else BY_16, rho, bits)
        else:
            rho = of_a_word(QUOTIENT, bits)
            if not LARGE:
                raised = of_two_words(BY_17, rho, bits)
            else:
                less = (bits >> 23) - 127 - 17
                raised, lowered = rho << tl.maximum(-less, 0), tl.maximum(less, 0)
    return raised[:, None, None], lowered[:, None, None]


@triton.jit
def bytes_of(
    even, odd, raised, lowered, RECIPROCAL: tl.constexpr, SCORES: tl.constexpr, LARGE: tl.constexpr
):  # fmt: skip
    """min((s * rho) >> (k + 7), 255) of the four scores of a word, as bytes in order."""
    if SPELLED_OUT:
        j = lowered + 7
        if SCORES == BYTES:
            even, odd = (even >> 8) & 0x00FF00FF, (odd >> 8) & 0x00FF00FF
        word = tl.minimum(((even & 0xFFFF) * raised) >> j, 255)
        word |= tl.minimum(((odd & 0xFFFF) * raised) >> j, 255) << 8
        word |= tl.minimum((((even >> 16) & 0xFFFF) * raised) >> j, 255) << 16
        word |= tl.minimum((((odd >> 16) & 0xFFFF) * raised) >> j, 255) << 24
    elif RECIPROCAL == DIVISION and LARGE:
        word = tl.inline_asm_elementwise(
            EXACT_LARGE, "=r,r,r,r,r", [even, odd, raised, lowered], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        OF_BYTES: tl.constexpr = SATURATED_BYTES_LARGE if LARGE else SATURATED_BYTES
        OF_HALVES: tl.constexpr = SATURATED_LARGE if LARGE else SATURATED
        SATURATING: tl.constexpr = OF_BYTES if SCORES == BYTES else OF_HALVES
        DIVIDING: tl.constexpr = EXACT_BYTES if SCORES == BYTES else EXACT
        CODE: tl.constexpr = DIVIDING if RECIPROCAL == DIVISION else SATURATING
        word = tl.inline_asm_elementwise(
            CODE, "=r,r,r,r", [even, odd, raised], dtype=tl.int32, is_pure=True, pack=1
        )
    return word


@triton.jit
def full_rows_wide(
    x_ptr, theta_ptr, out_ptr, RECIPROCAL: tl.constexpr, SCORES: tl.constexpr, SUMS: tl.constexpr,
    LARGE: tl.constexpr, PARTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of 4 * WORDS logits, blocks inside one head, no mask; `out_ptr` steps by four outputs.

    `theta_ptr` is what `lines_on` gives; SUMS and LARGE are what `lines_of` gives.
    """
    first, head = block_of(BLOCK_ROWS)
    place = places(PARTS, BLOCK_ROWS, WORDS)
    even, odd = signed_halves(load_parts(x_ptr + first * WORDS + place, PARTS, WORDS))
    theta_ptr += head * 6
    D, D2, least = tl.load(theta_ptr), tl.load(theta_ptr + 1), tl.load(theta_ptr + 2)
    S, S2 = tl.load(theta_ptr + 3), tl.load(theta_ptr + 4)
    pair = tl.reduce(larger_signed_halves(even, odd), 2, larger_signed_halves)
    pair = tl.reduce(pair, 1, larger_signed_halves)
    m = tl.maximum((pair << 16) >> 16, pair >> 16)[:, None, None]
    even, odd = pair_of_scores(even, m, D, D2, S, S2, least), pair_of_scores(odd, m, D, D2, S, S2, least)
    if SCORES == SHIFTED:
        f = tl.load(theta_ptr + 5)
        kept = (0xFFFF >> f) * 0x10001
        even, odd = (even >> f) & kept, (odd >> f) & kept
    Z = tl.maximum(row_sums(even, odd, SCORES, SUMS), 1)
    raised, lowered = factors(Z, RECIPROCAL, LARGE)
    four = bytes_of(even, odd, raised, lowered, RECIPROCAL, SCORES, LARGE)
    store_parts(out_ptr + first * WORDS + place, four, PARTS, WORDS)
