"""`Region`: the head parameters that rows of up to n columns admit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hccs.errors import ParameterError
from hccs.numbers.modes import INT16_MAX, MAX_DISTANCE, MAX_SLOPE, MIN_ROW_SUM


@dataclass(frozen=True)
class Region:
    """The admissible (B, S, D) for rows of up to `n` columns (paper, eq. 11 and section IV-C).

    >>> region = Region(n=64)
    >>> (444, 11, 40) in region
    True
    >>> region.violation(512, 11, 40)
    'B <= floor(32767/n) = 511, but B = 512'
    """

    n: int

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or self.n < 1:
            raise ParameterError(
                "n, the longest row, to be an integer >= 1", repr(self.n), "Pass the number of key positions."
            )
        object.__setattr__(self, "n", int(self.n))

    @property
    def floor(self) -> int:
        """The smallest score: ceil(256/n), so that a full row reaches Z >= 256."""
        return -(-MIN_ROW_SUM // self.n)

    @property
    def max_base(self) -> int:
        """The largest B: floor(32767/n), so that Z <= 32767."""
        return INT16_MAX // self.n

    def min_base(self, S: int, D: int) -> int:
        """The smallest B that keeps every score at or above `floor`."""
        return S * D + self.floor

    def max_slope(self, D: int) -> int:
        """The largest S that leaves some B at distance bound D; -1 when not even S = 0 does."""
        room = self.max_base - self.floor
        return min(MAX_SLOPE, room // D) if room >= 0 else -1

    def violation(self, B: int, S: int, D: int) -> str | None:
        """The first broken bound in words, or None when (B, S, D) is admissible."""
        if not 1 <= D <= MAX_DISTANCE:
            return f"1 <= D <= {MAX_DISTANCE}, but D = {D}"
        if not 0 <= S <= MAX_SLOPE:
            return f"0 <= S <= {MAX_SLOPE}, but S = {S}"
        if self.min_base(S, D) > B:
            return f"B >= S*D + ceil(256/n) = {self.min_base(S, D)}, but B = {B}"
        if self.max_base < B:
            return f"B <= floor(32767/n) = {self.max_base}, but B = {B}"
        return None

    def __contains__(self, triple: tuple[int, int, int]) -> bool:
        return self.violation(*triple) is None

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

    def require(self, B: int, S: int, D: int, where: str = "") -> None:
        """Refuse an inadmissible triple with the bound, the value and what would fit."""
        broken = self.violation(B, S, D)
        if broken is None:
            return
        if self.max_base < self.floor:
            hint = "No parameters serve rows this long: int16 sums allow at most n = 32767 columns."
        else:
            fits = min(max(D, 1), MAX_DISTANCE)
            hint = (
                f"At n = {self.n} and D = {fits}, S may be 0..{self.max_slope(fits)} "
                f"and B from S*D + {self.floor} to {self.max_base}."
            )
        raise ParameterError(f"{where}parameters admissible for n = {self.n}", broken, hint)
