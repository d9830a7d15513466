"""`softmax_s8` of TensorFlow Lite and CMSIS-NN: gemmlowp's exponential and reciprocal in 32-bit fixed point.

With x <= 0 the int8 logit less the row's maximum, and [a*b] = round(a*b / 2^31):

    z   = [x * 2^shift, multiplier],   x * S in Q5.26;   x < -radius takes no part
    e   = exp(z) in Q0.31: the quartic of exp around -1/8 on (-1/4, 0], times exp(-2^j) for j = -2..4
          where the bit of 2^j is set in what is left of -z
    sum = sum round(e / 2^12),    Q12.19
    inv = 1 / (1 + f) in Q0.31, 1 + f the mantissa of sum: 48/17 - 32/17*h and three steps of Newton's
    p   = round([inv * e] / 2^bits),   at most 255, worth 2^-8, stored as p - 128

Source: the quantised softmax of TensorFlow Lite (reference_ops::Softmax), which CMSIS-NN's `arm_softmax_s8`
says it equals bit for bit; fixedpoint.h of gemmlowp. benchmarks/mcu/softmax_s8.h is the same in C.
Widths: int8 in, 32-bit fixed point, int8 out; `output="int16"` is CMSIS-NN's `arm_softmax_s8_s16`, whose p is
worth 2^-16 and at most 65535. Needs: max, sum; neither table nor division. The declared costs count the
exponential twice, since the source computes it for the sum and again for the output, and all seven products,
of which it skips those whose bit is clear.
Our reading: none is left open. Beyond 4096 columns the 32-bit sum could overflow; int64 here does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import require_one_of
from hccs_lab.surrogates.by_distance import by_distance
from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.rows import leading_bit

INT32_MAX = (1 << 31) - 1
INTEGER_BITS = 5  # of the argument of the exponential: Q5.26
FRACTION_BITS = 31 - INTEGER_BITS
SUM_BITS = 12  # integer bits of the sum
OUTPUTS = {"int8": 8, "int16": 16}

EIGHTH = 1895147668  # exp(-1/8), Q0.31
THIRD = 715827883  # 1/3, Q0.31
POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)  # exp(-2^j), j = -2..4, Q0.31
NEWTON = (1515870810, -1010580540)  # 48/17 and -32/17, Q2.29


def product(a: Any, b: Any) -> Any:
    """round(a * b / 2^31) of int64 that hold 32-bit numbers; ties go up."""
    return (a * b + (1 << 30)) >> 31


def halved(x: Any, bits: Any) -> Any:
    """round(x / 2^bits) of x >= 0; ties go up."""
    return (x + ((1 << bits) >> 1)) >> bits


def constants(scale: NDArray[np.float64], output: str) -> dict[str, Any]:
    """The multiplier and shift to Q5.26, and the largest distance that takes part."""
    require_one_of("output", output, OUTPUTS, "See hccs_lab.surrogates.softmax_s8.")
    mantissa, shift = np.frexp(np.minimum(scale * 2.0**FRACTION_BITS, INT32_MAX))
    multiplier = np.floor(mantissa * 2.0**31 + 0.5).astype(np.int64)
    carried = multiplier > INT32_MAX
    multiplier, shift = np.where(carried, multiplier // 2, multiplier), shift.astype(np.int64) + carried
    radius = np.floor(((1 << INTEGER_BITS) - 1) * 2.0 ** (FRACTION_BITS - shift)).astype(np.int64)
    return {"multiplier": multiplier, "shift": shift, "radius": radius, "output": output}


def weights(d: NDArray[np.int64], multiplier: Any, shift: Any, radius: Any, output: str) -> NDArray[np.int64]:
    z = product(-np.minimum(d, radius) << shift, multiplier)
    e: NDArray[np.int64] = np.where(d <= radius, exponential(z), 0)
    return e


def exponential(z: NDArray[np.int64]) -> NDArray[np.int64]:
    """exp(z) of z <= 0 in Q5.26, as Q0.31."""
    quarter = 1 << (FRACTION_BITS - 2)
    below = (z & (quarter - 1)) - quarter  # -1/4 <= below < 0
    rest = below - z
    y = (below << INTEGER_BITS) + (1 << 28)  # from -1/8 to 1/8, Q0.31
    y2 = product(y, y)
    y3, y4 = product(y2, y), product(y2, y2)
    high = halved(product(halved(y4, 2) + y3, THIRD) + y2, 1)  # y^4/24 + y^3/6 + y^2/2
    e = EIGHTH + product(EIGHTH, y + high)
    for j, power in enumerate(POWERS):
        e = np.where(rest & (quarter << j), product(e, power), e)
    result: NDArray[np.int64] = np.where(z == 0, INT32_MAX, e)
    return result


def summand(e: Any) -> Any:
    return halved(e, SUM_BITS)


def normalise(e: Any, total: Any, output: str) -> Any:
    headroom = 31 - leading_bit(total)
    half = ((total << headroom) - (1 << 31) + INT32_MAX + 1) // 2
    guess = NEWTON[0] + product(half, NEWTON[1])
    for _ in range(3):
        guess = guess + 4 * product(guess, (1 << 29) - product(half, guess))
    inverse = (2 * guess).clip(max=INT32_MAX)
    width = OUTPUTS[output]
    p = halved(product(inverse, e), SUM_BITS - headroom + 31 - width)
    return p.clip(max=(1 << width) - 1)


def costs_by(output: str = "int8") -> Costs:
    width = OUTPUTS[output]
    return Costs(
        output=f"{output}, 2^-{width}",
        bits_inside=64,
        needs=frozenset({"max", "sum"}),
        # A product is 3 (multiply, add, shift), a rounded shift 4. Exponential, 61: argument 5, powers of y
        # 9, quartic 13, times exp(-1/8) 5, seven bits and products 28, zero 1. Element: max; twice (subtract,
        # compare, shift, product, exponential); rounded shift, sum; product, rounded shift, subtract, clip.
        operations=PerRow(element=149, row=38),
        source="TensorFlow Lite; CMSIS-NN; gemmlowp, Jacob and Warden 2015",
    )


SURROGATE = by_distance(
    name="softmax_s8",
    costs=costs_by(),
    costs_by=costs_by,
    weights=weights,
    normalise=normalise,
    summand=summand,
    one=lambda output: 1 << OUTPUTS[output],
    constants=constants,
    parameters={"output": "int8"},
)
