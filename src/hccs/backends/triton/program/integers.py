"""Exact integer arithmetic of docs/spec.md: rounding, leading bits, roots, division, look-ups, ramps."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

LARGEST_ROOT = tl.constexpr(4294967295.0)
_INTEGERS = tl.constexpr(1.5 * 2**52)
"""Added to a float64 it leaves the nearest integer, ties to the even one, in the lower bits."""
_SMALL_INTEGERS = tl.constexpr(1.5 * 2**23)


# $3:$2 is a table's address. It is one allocation, in which no sum reaches the upper half of an address.
_LOOK_UP = """{
    .reg .b32 i;
    .reg .b64 place;
    mad.lo.s32 i, $1, BYTES, $2;
    mov.b64 place, {i, $3};
    ld.global.nc.TYPE $0, [place];
}"""
_OF_BYTES = tl.constexpr(_LOOK_UP.replace("BYTES", "1").replace("TYPE", "s8"))
_OF_HALVES = tl.constexpr(_LOOK_UP.replace("BYTES", "2").replace("TYPE", "s16"))
_OF_WORDS = tl.constexpr(_LOOK_UP.replace("BYTES", "4").replace("TYPE", "b32"))


@triton.jit
def wait_for_launch_before(OVERLAPS: tl.constexpr):
    """Until all that it wrote can be read. From here on programs of the next launch may be placed.

    Every program of a launch waits, so that no launch can overtake the one before the last.
    """
    if OVERLAPS:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()


@triton.jit
def look_up(table_ptr, index, NVIDIA: tl.constexpr):
    """Entries of a table. An ordinary load would move indices to other threads, to read neighbours together.

    The tables of programs have 256 bytes: two lines of the cache, where no bank holds more than two words.
    """
    if NVIDIA:
        BITS: tl.constexpr = table_ptr.dtype.element_ty.primitive_bitwidth
        CODE: tl.constexpr = _OF_BYTES if BITS == 8 else _OF_HALVES if BITS == 16 else _OF_WORDS
        place = table_ptr.to(tl.int64)
        low, high = place.to(tl.int32), (place >> 32).to(tl.int32)
        return tl.inline_asm_elementwise(
            CODE, "=r,r,r,r", [index, low, high], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.load(table_ptr + index).to(tl.int32)


# $1 is 1.5 * 2^23 + x and $2 is |x|, $3 a step in pieces, $5:$4 the table's address less that of piece 2^23.
# 2^23 + piece, rounded down, has no smaller bits, and 1.5 * 2^23 + max(x, 0) - r none when rounded up.
_RAMP = tl.constexpr("""{
    .reg .f32 t, slope, begin;
    .reg .b32 i;
    .reg .b64 place;
    fma.rm.f32 t, $2, $3, 0f4B000000;
    mov.b32 i, t;
    mad.lo.s32 i, i, 8, $4;
    mov.b64 place, {i, $5};
    ld.global.nc.v2.f32 {slope, begin}, [place];
    fma.rm.f32 begin, slope, $2, begin;
    max.f32 t, $1, 0f4B400000;
    sub.rp.f32 $0, t, begin;
}""")


@triton.jit
def ramp(x, pieces_ptr, BITS: tl.constexpr, NVIDIA: tl.constexpr):
    """max(x, 0) - r(|x|) of int32 up to 2^15, in float32; `pieces_on` makes the 64 lines."""
    raised = (x + 0x4B400000).to(tl.float32, bitcast=True)
    real = raised - _SMALL_INTEGERS
    distance = tl.minimum(tl.abs(real), (64 << BITS) - 1)
    if NVIDIA:
        place = pieces_ptr.to(tl.int64)
        low, high = (place - 8 * 0x4B000000).to(tl.int32), (place >> 32).to(tl.int32)
        found = tl.inline_asm_elementwise(
            _RAMP, "=f,f,f,f,r,r", [raised, distance, 1.0 / (1 << BITS), low, high], dtype=tl.float32,
            is_pure=True, pack=1,
        ) - _SMALL_INTEGERS  # fmt: skip
    else:
        place = pieces_ptr + 2 * (distance.to(tl.int32) >> BITS)
        line = tl.load(place).to(tl.float64) * distance.to(tl.float64) + tl.load(place + 1).to(tl.float64)
        found = tl.maximum(real, 0) - tl.floor(line).to(tl.float32)
    return found


# Rounded down to halves beside 1.5 * 2^22, then to integers beside 1.5 * 2^23.
_SCALED = tl.constexpr("""{
    .reg .f32 t;
    fma.rm.f32 t, $1, $2, 0f4AC00001;
    add.rm.f32 t, t, 0f4AC00000;
    add.rn.f32 $0, t, 0fCB400000;
}""")


@triton.jit
def scaled(x, scale, NVIDIA: tl.constexpr):
    """floor(x * scale + 1/2) of integers up to 2^15 and multiples of 2^-15, all in float32."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            _SCALED, "=f,f,f", [x, scale], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        return tl.floor(x.to(tl.float64) * scale + 0.5).to(tl.float32)


@triton.jit
def shift_half_even(a, bits):
    """rhe(a / 2^bits), where 2^bits has the type of a: the nearest integer, ties to the even one."""
    floor = a >> bits
    rest = a - (floor << bits)
    whole = (tl.zeros_like(a) + 1) << bits
    return floor + (2 * rest + (floor & 1) > whole).to(a.dtype)


@triton.jit
def exact_float(a):
    """int32 as float64, without the conversion, which takes four times as long as a sum."""
    bits = (a.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.int64) | 0x4330000000000000
    return bits.to(tl.float64, bitcast=True) - (2.0**52 + 2.0**31)  # the bits are those of this and a


@triton.jit
def nearest_float(a, b):
    """rhe(a * b) of float64 and as one, by one rounding: however many bits the product has."""
    a, b = tl.broadcast(a, b)
    return tl.fma(a, b, tl.zeros_like(a) + _INTEGERS) - _INTEGERS


@triton.jit
def nearest(a, b):
    """rhe(a * b) of float64 as int32, where it fits."""
    a, b = tl.broadcast(a, b)
    return tl.fma(a, b, tl.zeros_like(a) + _INTEGERS).to(tl.int64, bitcast=True).to(tl.int32)


@triton.jit
def power_of_2(exponent):
    """As float64, from 2^-1022 to 2^1023."""
    return ((tl.full([], 1023, tl.int64) + exponent) << 52).to(tl.float64, bitcast=True)


@triton.jit
def nearest_small(a, b):
    """rhe(a * b) of float32 as int32, up to 2^22."""
    a, b = tl.broadcast(a, b)
    sum = tl.fma(a, b, tl.zeros_like(a) + _SMALL_INTEGERS)
    return sum.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def nearest_within(a, b, limit):
    """clamp(rhe(a * b), -limit, limit) of float32; a limit has 16 bits, the product as many as it likes."""
    a, b = tl.broadcast(a, b)
    sum = tl.fma(a, b, tl.zeros_like(a) + _SMALL_INTEGERS)
    sum = tl.minimum(tl.maximum(sum, _SMALL_INTEGERS - limit), _SMALL_INTEGERS + limit)
    return sum.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def small_power_of_2(exponent):
    """As float32, from 2^-126 to 2^127."""
    return ((tl.full([], 127, tl.int32) + exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def clamped(a, limit):
    return tl.minimum(tl.maximum(a, -limit), limit)


@triton.jit
def leading_bit(a):
    """floor(log2(a)) of int64 from 1 on. Its float64 may be rounded up, to a power of two at most."""
    k = (a.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    return k - ((a >> k) == 0).to(tl.int64)


@triton.jit
def square_root(a):
    """floor(sqrt(a)) of uint64. That of the nearest float64 is off by one at most."""
    s = tl.minimum(tl.sqrt(a.to(tl.float64)), LARGEST_ROOT).to(tl.int64).to(tl.uint64)
    s = s - (s * s > a).to(tl.uint64)
    return s + (a - s * s > s + s).to(tl.uint64)


@triton.jit
def root_and_quotient(a, b):
    """s = floor(sqrt(a)) of uint64 in [2^62, 2^64), and floor(b / s) of int64 b in [2^60, 2^62).

    One step of Newton's takes the root's float32 inverse to 43 bits: both are then off by one at most.
    """
    wide = a.to(tl.float64)
    inverse = tl.rsqrt(wide.to(tl.float32)).to(tl.float64)
    inverse = tl.fma(inverse, tl.fma(wide * inverse, inverse * -0.5, tl.zeros_like(inverse) + 0.5), inverse)
    s = ((wide * inverse + _INTEGERS).to(tl.int64, bitcast=True) & 0xFFFFFFFF).to(tl.uint64)
    s = s - (s * s > a).to(tl.uint64)
    s = (s + (a - s * s > s + s).to(tl.uint64)).to(tl.int64)
    quotient = (b.to(tl.float64) * inverse + _INTEGERS).to(tl.int64, bitcast=True) & 0xFFFFFFFF
    rest = b - quotient * s
    return s, quotient + (rest >= s).to(tl.int64) - (rest < 0).to(tl.int64)


@triton.jit
def quotient(a, b):
    """floor(a / b), below 2^30, of a in float64 and b from 1 to 2^24 in int32, by a step of Newton's, too."""
    wide = exact_float(b)
    inverse = (1.0 / b.to(tl.float32)).to(tl.float64)
    inverse = tl.fma(inverse, tl.fma(-wide, inverse, tl.full([], 1.0, tl.float64)), inverse)
    found = nearest_float(a, inverse)
    rest = tl.fma(-found, wide, a)
    return found.to(tl.int32) - (rest < 0).to(tl.int32)


@triton.jit
def floor_divide(a, b, MOST: tl.constexpr):
    """floor(a / b), b > 0 and |a| <= MOST * b. Triton divides towards zero, so the dividend is moved up."""
    return (a + b * MOST) // b - MOST
