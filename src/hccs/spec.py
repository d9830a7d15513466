"""What the numbers are: modes, head parameters and the region they may come from. No array maths here."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DtypeError, ModeError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT16_MAX = 32767
"""Row sums Z stay at or below this, so that rho = floor(32767 / Z) is at least 1."""

MAX_DISTANCE = 127
"""Clamped distances fit a signed int8."""

MAX_SLOPE = 127
"""S is an operand of an int8 multiply-accumulate."""

MIN_ROW_SUM = 256
"""At Z >= 256 the u8 reciprocal floor(255 * 2^15 / Z) fits int16."""

RECIPROCAL_SHIFT = 15
"""The paper's INV_SHIFT: fraction bits of the u8 reciprocal (eq. 8)."""


class Mode(str, enum.Enum):
    """How a row of scores is normalised: output width, and exact or leading-bit reciprocal.

    >>> Mode("u8_clb").T, Mode("u8_clb").dtype
    (255, dtype('uint8'))
    """

    I16_DIV = "i16_div"
    I16_CLB = "i16_clb"
    U8_DIV = "u8_div"
    U8_CLB = "u8_clb"

    @classmethod
    def _missing_(cls, value: object) -> Mode:
        names = ", ".join(repr(mode.value) for mode in cls)
        raise ModeError(f"mode to be one of {names}", repr(value), "The paper's i8+CLB is 'u8_clb'.")

    @property
    def is_u8(self) -> bool:
        """True for uint8 output, False for int16."""
        return self in (Mode.U8_DIV, Mode.U8_CLB)

    @property
    def is_clb(self) -> bool:
        """True when the reciprocal comes from the leading bit of Z, False for the exact division."""
        return self in (Mode.I16_CLB, Mode.U8_CLB)

    @property
    def T(self) -> int:
        """The integer that stands for probability one."""
        return 255 if self.is_u8 else INT16_MAX

    @property
    def dtype(self) -> np.dtype[Any]:
        """The output's dtype."""
        return np.dtype(np.uint8 if self.is_u8 else np.int16)


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


def _integers(name: str, value: Any) -> NDArray[np.int32]:
    array = np.asarray(value)
    if array.size == 0:
        raise ShapeError(f"{name} to hold at least one value", f"shape {array.shape}", "Pass one per head.")
    if array.dtype.kind not in "iu":
        raise DtypeError(
            f"{name} to be an integer or an integer array",
            f"{type(value).__name__} of dtype {array.dtype}",
            "Head parameters are integers by definition; round them before.",
        )
    wide = array.astype(np.int64)
    if wide.min() < -(2**31) or wide.max() >= 2**31:
        raise ParameterError(f"{name} to fit int16 arithmetic", str(wide.flat[0]), "See hccs.Region.")
    return wide.astype(np.int32)


@dataclass(frozen=True, eq=False)
class HeadParams:
    """theta = (B, S, D) of one head, or of many as arrays of one shape.

    Refuses what no integer datapath could run: D outside 1..127, S outside 0..127, B < 1, B < S*D (a
    negative score) or B > 32767. Whether a row of c columns can be run is checked when it is run;
    whether theta serves rows of n columns in every mode is `Region(n)`'s to say.

    >>> HeadParams(B=444, S=11, D=40)
    HeadParams(B=444, S=11, D=40)
    >>> HeadParams(B=[444, 300], S=[11, 4], D=40).shape
    (2,)
    """

    B: Any
    S: Any
    D: Any

    def __post_init__(self) -> None:
        arrays = {name: _integers(name, getattr(self, name)) for name in "BSD"}
        try:
            B, S, D = np.broadcast_arrays(*arrays.values())
        except ValueError as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ShapeError(
                "B, S and D to broadcast together", shapes, "Give each one value, or one per head."
            ) from error
        packed = np.stack([B, S, D], axis=-1)
        packed.flags.writeable = False
        for b, s, d in packed.reshape(-1, 3).tolist():
            _require_runnable(b, s, d)
        for i, name in enumerate("BSD"):
            object.__setattr__(self, name, packed[..., i] if B.shape else int(packed[i]))
        object.__setattr__(self, "_packed", packed)
        object.__setattr__(self, "_max_base", int(packed[..., 0].max()))

    @property
    def shape(self) -> tuple[int, ...]:
        """() for one head, else the common shape of B, S and D."""
        return self.packed.shape[:-1]

    @property
    def packed(self) -> NDArray[np.int32]:
        """The parameters as one read-only int32 array [..., 3] in the order B, S, D."""
        packed: NDArray[np.int32] = self._packed  # type: ignore[attr-defined]
        return packed

    @property
    def max_base(self) -> int:
        """The largest B."""
        base: int = self._max_base  # type: ignore[attr-defined]
        return base

    def require_columns(self, columns: int) -> None:
        """Refuse rows so long that Z could leave int16."""
        if columns * self.max_base > INT16_MAX:
            raise ParameterError(
                f"columns * B <= {INT16_MAX}, so that the row sum fits int16",
                f"{columns} columns with B = {self.max_base}",
                f"At this B a row may have at most {INT16_MAX // self.max_base} columns; "
                f"for {columns} columns recalibrate with n = {columns}.",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeadParams):
            return NotImplemented
        return np.array_equal(self.packed, other.packed)

    def __hash__(self) -> int:
        return hash((self.shape, self.packed.tobytes()))


def _require_runnable(B: int, S: int, D: int) -> None:
    if not 1 <= D <= MAX_DISTANCE:
        bound, fits = f"1 <= D <= {MAX_DISTANCE}", f"Clip D to 1..{MAX_DISTANCE}."
    elif not 0 <= S <= MAX_SLOPE:
        bound, fits = f"0 <= S <= {MAX_SLOPE}", f"S multiplies int8 distances: clip it to 0..{MAX_SLOPE}."
    elif not 1 <= B <= INT16_MAX:
        bound, fits = f"1 <= B <= {INT16_MAX}", "B is the score of the row's maximum and fits int16."
    elif S * D > B:
        bound, fits = f"B >= S*D = {S * D}", f"Raise B to {S * D}, or lower S to at most {B // D}."
    else:
        return
    raise ParameterError(bound, f"B = {B}, S = {S}, D = {D}", fits)
