"""`Region`: the head parameters that rows of up to n columns admit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hccs.errors import ParameterError
from hccs.numbers.modes import INT16_MAX, MAX_DISTANCE, MAX_SHIFT, MAX_SLOPE, MIN_ROW_SUM, UINT8_MAX, WIDE_MAX

NARROW, WIDE = 15, 24
"""Bits of a row sum: the paper's, and those that keep it exact in float32."""


@dataclass(frozen=True)
class Region:
    """The admissible parameters for rows of up to `n` columns whose sums have `sum_bits`, 15 or 24.

    15 is the paper's region (eq. 11 and section IV-C), and 24 that of wide sums. Parameters are (B, S, D), or
    (B, S, D, S2, D2, f) with a second line.

    >>> region = Region(n=64)
    >>> (444, 11, 40) in region
    True
    >>> region.violation(512, 11, 40)
    'B <= floor(32767/n) = 511, but B = 512'
    >>> (1023, 4, 50, 41, 20, 0) in Region(n=64, sum_bits=24)
    True
    """

    n: int
    sum_bits: int = NARROW

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or self.n < 1:
            raise ParameterError(
                "n, the longest row, to be an integer >= 1", repr(self.n), "Pass the number of key positions."
            )
        if isinstance(self.sum_bits, bool) or self.sum_bits not in (NARROW, WIDE):
            raise ParameterError(
                f"sum_bits to be {NARROW} or {WIDE}",
                repr(self.sum_bits),
                "15 is the paper's; 24 is for two lines.",
            )
        object.__setattr__(self, "n", int(self.n))
        object.__setattr__(self, "sum_bits", int(self.sum_bits))

    @property
    def floor(self) -> int:
        """The smallest score: 1, and in 15 bits ceil(256/n), so that a full row reaches Z >= 256."""
        return 1 if self.sum_bits == WIDE else -(-MIN_ROW_SUM // self.n)

    @property
    def max_base(self) -> int:
        """The largest score, B >> f: floor(32767/n) in 15 bits, so that Z <= 32767; always int16."""
        return min(INT16_MAX, WIDE_MAX // self.n) if self.sum_bits == WIDE else INT16_MAX // self.n

    def min_base(self, S: int, D: int, S2: int = 0, D2: int = 1, f: int = 0) -> int:
        """The smallest B that keeps every score at or above `floor`."""
        return S * D + S2 * D2 + (self.floor << f)

    def max_slope(self, D: int) -> int:
        """The largest S of one line that leaves some B at distance bound D; -1 when not even S = 0 does."""
        room = self.max_base - self.floor
        return min(MAX_SLOPE, room // D) if room >= 0 else -1

    def violation(self, B: int, S: int, D: int, S2: int = 0, D2: int = 1, f: int = 0) -> str | None:
        """The first broken bound in words, or None when the parameters are admissible."""
        if not 1 <= D <= MAX_DISTANCE:
            return f"1 <= D <= {MAX_DISTANCE}, but D = {D}"
        if not 0 <= S <= MAX_SLOPE:
            return f"0 <= S <= {MAX_SLOPE}, but S = {S}"
        if not 1 <= D2 <= D:
            return f"1 <= D2 <= D = {D}, but D2 = {D2}"
        if not 0 <= S2 <= MAX_SLOPE:
            return f"0 <= S2 <= {MAX_SLOPE}, but S2 = {S2}"
        if not 0 <= f <= MAX_SHIFT:
            return f"0 <= f <= {MAX_SHIFT}, but f = {f}"
        two = bool(S2 or f)
        least = self.min_base(S, D, S2, D2, f)
        if least > B:
            floor = "1" if self.sum_bits == WIDE else "ceil(256/n)"
            scores = f"S*D + S2*D2 + {floor} * 2^f" if two else f"S*D + {floor}"
            return f"B >= {scores} = {least}, but B = {B}"
        most = min(self.max_base, UINT8_MAX) if f else self.max_base
        if most < B >> f:
            if f:
                return f"B >> f <= {most}, but B >> f = {B >> f}"
            words = (
                f"floor({INT16_MAX}/n)"
                if self.sum_bits == NARROW
                else f"min({INT16_MAX}, floor({WIDE_MAX}/n))"
            )
            return f"B <= {words} = {most}, but B = {B}"
        return None

    def __contains__(self, parameters: tuple[int, ...]) -> bool:
        return self.violation(*parameters) is None

    def __len__(self) -> int:
        return sum(
            self.max_base - self.min_base(S, D) + 1
            for D in range(1, MAX_DISTANCE + 1)
            for S in range(self.max_slope(D) + 1)
        )

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """All admissible (B, S, D), by D, then S, then B: the order in which calibration breaks ties."""
        for D in range(1, MAX_DISTANCE + 1):
            for S in range(self.max_slope(D) + 1):
                for B in range(self.min_base(S, D), self.max_base + 1):
                    yield B, S, D

    def require(
        self, B: int, S: int, D: int, S2: int = 0, D2: int = 1, f: int = 0, *, where: str = ""
    ) -> None:
        """Refuse inadmissible parameters with the bound, the value and what would fit."""
        broken = self.violation(B, S, D, S2, D2, f)
        if broken is None:
            return
        longest = INT16_MAX if self.sum_bits == NARROW else WIDE_MAX
        if self.max_base < self.floor:
            sums = "int16 sums" if self.sum_bits == NARROW else "sums of 24 bits"
            hint = f"No parameters serve rows this long: {sums} allow at most n = {longest} columns."
        elif S2 or f:
            most = min(self.max_base, UINT8_MAX) if f else self.max_base
            hint = (
                f"At n = {self.n} and f = {f}, B >> f may be at most {most}, "
                f"and (B - S*D - S2*D2) >> f at least {self.floor}."
            )
        else:
            fits = min(max(D, 1), MAX_DISTANCE)
            hint = (
                f"At n = {self.n} and D = {fits}, S may be 0..{self.max_slope(fits)} "
                f"and B from S*D + {self.floor} to {self.max_base}."
            )
        raise ParameterError(f"{where}parameters admissible for n = {self.n}", broken, hint)
