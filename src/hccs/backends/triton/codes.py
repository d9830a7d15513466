"""The numbers by which the kernels know masks, modes and outputs: compile-time constants, named once."""

from __future__ import annotations

import numpy as np
import triton.language as tl

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import arguments

NO_MASK = tl.constexpr(arguments.NO_MASK)
LENGTHS = tl.constexpr(arguments.LENGTHS)
MASK = tl.constexpr(arguments.MASK)
COMMON_MASK = tl.constexpr(arguments.MASK + 1)
"""Attention's own: a mask that is the same for all queries of a head."""

DEFERRED, U8_DIV, U8_CLB, U8_LIN = (tl.constexpr(number) for number in range(4))
"""Attention's normalisation: of the output alone, or probabilities first, in one of the uint8 modes."""

DIVISION, LEADING_BIT, LINE = (tl.constexpr(number) for number in range(3))
"""How a reciprocal comes about; `MODE - 1` of attention's uint8 modes."""

ONE_LINE, TWO_LINES, SHIFTED, BYTES = (tl.constexpr(number) for number in range(4))
"""How scores come about: the paper's; of two lines; those shifted by f in some heads, or in all of them."""

PACKED, BY_BLOCK, APART = (tl.constexpr(number) for number in range(3))
"""How attention adds two scores of a word: halves of one sum, of each block's sum, or one by one."""

FLOATS, INT8, PAIR = (tl.constexpr(number) for number in range(3))
"""Attention's outputs; any of the float formats is FLOATS."""


def normalisation(mode: Mode | None) -> int:
    """Attention's MODE."""
    return int(DEFERRED.value) if mode is None else int(U8_DIV.value) + mode.reciprocal


def how_scores_come_about(theta: HeadParams) -> int:
    """ONE_LINE, TWO_LINES, SHIFTED or BYTES."""
    if not theta.wide or not (np.any(theta.S2) or np.any(theta.f)):
        return int(ONE_LINE.value)
    if not np.any(theta.f):
        return int(TWO_LINES.value)
    return int(BYTES.value if np.all(theta.f) else SHIFTED.value)
