"""`Mode`: how a row of scores is normalised; and the bounds that every number of the datapath keeps."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from hccs.errors import ModeError

INT16_MAX = 32767
"""Row sums Z of one line stay at or below this, so that rho = floor(32767 / Z) is at least 1."""

WIDE_MAX = 2**24 - 1
"""Wide row sums stay at or below this: exact in float32, and 128 * Z fits int32."""

UINT8_MAX = 255
"""Scores that a shift f makes narrow stay at or below this."""

MAX_SHIFT = 7
"""The largest f: it brings B <= 32767 to uint8 scores."""

MAX_DISTANCE = 127
"""Clamped distances fit a signed int8."""

MAX_SLOPE = 127
"""S is an operand of an int8 multiply-accumulate."""

MIN_ROW_SUM = 256
"""At Z >= 256 the u8 reciprocal floor(255 * 2^15 / Z) fits int16."""

RECIPROCAL_SHIFT = 15
"""The paper's INV_SHIFT: fraction bits of the u8 reciprocal (eq. 8)."""

DIVISOR_BITS = 15
"""Wide sums are brought to this leading bit before they divide."""

LINEAR_TOP = 47976
"""1.4641 * 2^15: 1/z of z = M / 2^15 from 1 to 2 is (LINEAR_TOP - M/2) / 2^15, to 7.2 %: the best line."""


class Mode(str, enum.Enum):
    """How a row of scores is normalised: output width, and a reciprocal by division, leading bit or line.

    >>> Mode("u8_clb").T, Mode("u8_clb").dtype
    (255, dtype('uint8'))
    """

    I16_DIV = "i16_div"
    I16_CLB = "i16_clb"
    U8_DIV = "u8_div"
    U8_CLB = "u8_clb"
    U8_LIN = "u8_lin"

    @classmethod
    def _missing_(cls, value: object) -> Mode:
        names = ", ".join(repr(mode.value) for mode in cls)
        raise ModeError(f"mode to be one of {names}", repr(value), "The paper's i8+CLB is 'u8_clb'.")

    @property
    def is_u8(self) -> bool:
        return self in (Mode.U8_DIV, Mode.U8_CLB, Mode.U8_LIN)

    @property
    def is_clb(self) -> bool:
        """True when the reciprocal is that of Z's leading bit alone."""
        return self in (Mode.I16_CLB, Mode.U8_CLB)

    @property
    def is_linear(self) -> bool:
        return self is Mode.U8_LIN

    @property
    def reciprocal(self) -> int:
        """0 by division, 1 by the leading bit, 2 by a line: the number under which kernels know it."""
        return 2 if self.is_linear else int(self.is_clb)

    @property
    def T(self) -> int:
        """The integer that stands for probability one."""
        return 255 if self.is_u8 else INT16_MAX

    @property
    def spare_bits(self) -> int:
        """How far T is shifted to fill 15 bits: the wide reciprocal's fraction bits beyond those of Z."""
        return 7 if self.is_u8 else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.is_u8 else np.int16)
