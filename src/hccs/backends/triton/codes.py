"""The numbers by which the kernels know masks, modes and outputs: compile-time constants, named once."""

from __future__ import annotations

import triton.language as tl

from hccs.numbers.modes import Mode
from hccs.ops import arguments

NO_MASK = tl.constexpr(arguments.NO_MASK)
LENGTHS = tl.constexpr(arguments.LENGTHS)
MASK = tl.constexpr(arguments.MASK)
COMMON_MASK = tl.constexpr(arguments.MASK + 1)
"""Attention's own: a mask that is the same for all queries of a head."""

DEFERRED, U8_DIV, U8_CLB = (tl.constexpr(number) for number in range(3))
"""Attention's normalisation: of the output alone, or probabilities first, in one of the uint8 modes."""

FLOATS, INT8, PAIR = (tl.constexpr(number) for number in range(3))
"""Attention's outputs; any of the float formats is FLOATS."""

MODES = {None: DEFERRED.value, Mode.U8_DIV: U8_DIV.value, Mode.U8_CLB: U8_CLB.value}
