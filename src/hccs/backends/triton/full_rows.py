"""Full rows, four logits to a 32-bit word, at the speed of memory.

A row kernel moves two or three bytes an element, so that the speed of memory leaves about a dozen
instructions for each. Hopper works on two 16-bit halves at once: a word is split into its even and its odd
bytes, and maximum, distance, clamp and sum run on pairs. So does score times reciprocal in the int16 modes,
whose products fit sixteen bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hccs.backends.triton.codes import DIVISION
from hccs.backends.triton.devices import HOPPER, INTERPRETED, capability
from hccs.backends.triton.formulas import reciprocal

MOST_COLUMNS = 1024
"""D <= 127: the sum of half a row's distances, in sixteen bits, allows no more."""

# Triton's interpreter knows no machine instructions: there each of them is spelled out.
SPELLED_OUT = tl.constexpr(INTERPRETED)


def can_run(device: torch.device) -> bool:
    """Whether the device has instructions on pairs: compute capability 9.0 on; the interpreter has all."""
    return INTERPRETED or capability(device) >= HOPPER


@triton.jit
def larger_halves(a, b):
    """The larger of each pair of unsigned 16-bit halves."""
    if SPELLED_OUT:
        upper = tl.maximum((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF)
        word = tl.maximum(a & 0xFFFF, b & 0xFFFF) | (upper << 16)
    else:
        word = tl.inline_asm_elementwise(
            "max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    return word


@triton.jit
def smaller_halves(a, b):
    """The smaller of each pair of unsigned 16-bit halves."""
    if SPELLED_OUT:
        upper = tl.minimum((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF)
        word = tl.minimum(a & 0xFFFF, b & 0xFFFF) | (upper << 16)
    else:
        word = tl.inline_asm_elementwise(
            "min.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
    return word


@triton.jit
def split(word):
    """The even and the odd bytes of a word, each in a half of its own."""
    if SPELLED_OUT:
        even, odd = word & 0x00FF00FF, (word >> 8) & 0x00FF00FF
    else:
        even = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, 0x4240;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )
        odd = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, 0x4341;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )
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
EXACT = tl.constexpr("{" + _SCORES_TIMES_RECIPROCAL + _STORE_BYTES + "}")
SATURATED = tl.constexpr("{" + _SCORES_TIMES_RECIPROCAL + _SATURATE + _STORE_BYTES + "}")


@triton.jit
def outputs(even, odd, base, slope, RECIPROCAL: tl.constexpr):
    """(base - slope * delta) >> 16, at most 255, for the four distances of a word, as bytes in order."""
    if SPELLED_OUT:
        word = tl.minimum((base - slope * (even & 0xFFFF)) >> 16, 255)
        word |= tl.minimum((base - slope * (odd & 0xFFFF)) >> 16, 255) << 8
        word |= tl.minimum((base - slope * (even >> 16)) >> 16, 255) << 16
        word |= tl.minimum((base - slope * (odd >> 16)) >> 16, 255) << 24
    else:
        CODE: tl.constexpr = EXACT if RECIPROCAL == DIVISION else SATURATED
        word = tl.inline_asm_elementwise(
            CODE, "=r,r,r,r,r", [even, odd, base, -slope], dtype=tl.int32, is_pure=True, pack=1
        )
    return word


@triton.jit
def interleaved(even, odd):
    """Pairs (0, 2) and (1, 3) as pairs (0, 1) and (2, 3)."""
    if SPELLED_OUT:
        low = (even & 0xFFFF) | (odd << 16)
        high = ((even >> 16) & 0xFFFF) | (odd & -0x10000)
    else:
        low = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1
        )
        high = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1
        )
    return low, high


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
    x_ptr, theta_ptr, out_ptr,
    IS_U8: tl.constexpr, RECIPROCAL: tl.constexpr, PARTS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
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
    rho = reciprocal(Z.to(tl.float32), IS_U8, RECIPROCAL)
    base, slope = (B * rho).to(tl.int32)[:, None, None], (S * rho).to(tl.int32)[:, None, None]
    if IS_U8:
        # s * rho / 2^15 (eq. 7, 8), moved to where the upper half of a word begins.
        four = outputs(even, odd, base << 1, slope << 1, RECIPROCAL)
    else:
        # s * rho (eq. 6, 7) in both halves at once: it stays below 2^16, so none spills into the other half.
        even, odd = base * 0x10001 - slope * even, base * 0x10001 - slope * odd
        if RECIPROCAL != DIVISION:
            even, odd = smaller_halves(even, 0x7FFF7FFF), smaller_halves(odd, 0x7FFF7FFF)
        low, high = interleaved(even, odd)
        four = low.to(tl.uint32, bitcast=True).to(tl.int64) | (high.to(tl.int64) << 32)
    store_parts(out_ptr + first * WORDS + place, four, PARTS, WORDS)
