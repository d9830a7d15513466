"""`HeadParams`: theta = (B, S, D) of one head or of many, with a second line or without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hccs.errors import ParameterError, ShapeError
from hccs.numbers.arrays import Packed, integers, together
from hccs.numbers.modes import INT16_MAX, MAX_DISTANCE, MAX_SHIFT, MAX_SLOPE, UINT8_MAX, WIDE_MAX

NAMES = ("B", "S", "D", "S2", "D2", "f")
"""A head's parameters in the order in which arrays hold them: the first three, or all six."""

ONE_LINE = 3
"""How many of them the paper's form has."""

NO_SECOND_LINE = {"S2": 0, "D2": 1, "f": 0}
"""What makes the six the paper's three."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class HeadParams(Packed):
    """theta = (B, S, D) of one head, or of many as arrays of one shape; two lines with S2, D2 and f besides.

    A score is `(B - S*min(d, D) - S2*min(d, D2)) >> f` at distance d from the row's maximum. Without a second
    line it is the paper's B - S*min(d, D), and rows are summed in 15 bits. With one, or with `wide=True`,
    they are summed in 24 bits and normalised by a scaled reciprocal (docs/spec.md).

    Refuses what no integer datapath could run: D outside 1..127, D2 outside 1..D, S or S2 outside 0..127, B
    outside 1..32767, a score below 0, and a shift f that does not make scores uint8. Whether a row of c
    columns can be run is checked when it is run; whether theta serves rows of n columns in every mode is
    `Region(n)`'s to say. `packed` is a read-only int32 array: [..., 3] of B, S, D or, wide, [..., 6] of all.

    >>> HeadParams(B=444, S=11, D=40)
    HeadParams(B=444, S=11, D=40)
    >>> HeadParams(B=1023, S=4, D=50, S2=41, D2=20)
    HeadParams(B=1023, S=4, D=50, S2=41, D2=20, f=0)
    >>> HeadParams(B=[444, 300], S=[11, 4], D=40).shape
    (2,)
    """

    B: int | NDArray[np.int32]
    S: int | NDArray[np.int32]
    D: int | NDArray[np.int32]
    S2: int | NDArray[np.int32]
    D2: int | NDArray[np.int32]
    f: int | NDArray[np.int32]
    wide: bool
    """Whether rows are summed in 24 bits; True wherever a head has a second line or a shift."""

    def __init__(
        self,
        B: ArrayLike,
        S: ArrayLike,
        D: ArrayLike,
        S2: ArrayLike = NO_SECOND_LINE["S2"],
        D2: ArrayLike = NO_SECOND_LINE["D2"],
        f: ArrayLike = NO_SECOND_LINE["f"],
        *,
        wide: bool | None = None,
    ) -> None:
        arrays = {
            name: integers(name, value) for name, value in zip(NAMES, (B, S, D, S2, D2, f), strict=True)
        }
        six = np.stack(together(arrays), axis=-1)
        beyond_one_line = bool(six[..., [3, 5]].any())
        if wide is False and beyond_one_line:
            raise ParameterError(
                "wide sums for a second line or a shift", "wide=False", "Leave `wide` out, or S2 and f at 0."
            )
        is_wide = beyond_one_line or bool(wide)
        for values in six.reshape(-1, len(NAMES)).tolist():
            _require_runnable(*values)
        if not is_wide:
            six[..., 4] = NO_SECOND_LINE["D2"]  # where nothing is clamped there, it says nothing
        packed = six if is_wide else np.ascontiguousarray(six[..., :ONE_LINE])
        for array in (six, packed):
            array.flags.writeable = False
        for i, name in enumerate(NAMES):
            object.__setattr__(self, name, six[..., i] if six.ndim > 1 else int(six[i]))
        object.__setattr__(self, "wide", is_wide)
        object.__setattr__(self, "_packed", packed)
        object.__setattr__(self, "_max_score", int((six[..., 0] >> six[..., 5]).max()))

    @classmethod
    def from_packed(cls, packed: NDArray[np.integer]) -> HeadParams:
        """The parameters of `packed`: int [..., 3] of one line, or [..., 6]."""
        if packed.ndim == 0 or packed.shape[-1] not in (ONE_LINE, len(NAMES)):
            raise ShapeError(
                "theta [..., 3] of B, S and D, or [..., 6] with S2, D2 and f",
                f"shape {packed.shape}",
                "Stack the three, or the six, last.",
            )
        return cls(*np.moveaxis(packed, -1, 0), wide=packed.shape[-1] > ONE_LINE)

    @property
    def max_score(self) -> int:
        """The largest score of any head: that of a row's maximum, B >> f."""
        score: int = self._max_score  # type: ignore[attr-defined]
        return score

    @property
    def max_columns(self) -> int:
        """The longest row whose sum Z surely fits 15 bits, or 24 of wide sums."""
        return (WIDE_MAX if self.wide else INT16_MAX) // self.max_score

    def require_columns(self, columns: int) -> None:
        """Refuse rows so long that Z could leave its 15 bits, or 24 of wide sums."""
        most = WIDE_MAX if self.wide else INT16_MAX
        if columns * self.max_score <= most:
            return
        if self.wide:
            raise ParameterError(
                f"columns * (B >> f) <= {most}, so that the row sum stays below 2^24",
                f"{columns} columns with scores up to {self.max_score}",
                f"At these scores a row may have at most {most // self.max_score} columns.",
            )
        raise ParameterError(
            f"columns * B <= {INT16_MAX}, so that the row sum fits int16",
            f"{columns} columns with B = {self.max_score}",
            f"At this B a row may have at most {INT16_MAX // self.max_score} columns; "
            f"for {columns} columns recalibrate with n = {columns}.",
        )

    def require_one_line(self, where: str, instead: str) -> None:
        """Refuse wide parameters where only the paper's form is implemented."""
        if self.wide:
            raise ParameterError(f"one line (B, S, D) and sums of 15 bits {where}", repr(self), instead)

    def __repr__(self) -> str:
        shown = NAMES if self.wide else NAMES[:ONE_LINE]
        numbers = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        plain = self.wide and not (np.any(self.S2) or np.any(self.f))
        return f"HeadParams({numbers}{', wide=True' if plain else ''})"


def _require_runnable(B: int, S: int, D: int, S2: int, D2: int, f: int) -> None:
    lost = S * D + S2 * D2
    second = S2 != 0 or f != 0
    if not 1 <= D <= MAX_DISTANCE:
        bound, fits = f"1 <= D <= {MAX_DISTANCE}", f"Clip D to 1..{MAX_DISTANCE}."
    elif not 0 <= S <= MAX_SLOPE:
        bound, fits = f"0 <= S <= {MAX_SLOPE}", f"S multiplies int8 distances: clip it to 0..{MAX_SLOPE}."
    elif not 0 <= S2 <= MAX_SLOPE:
        bound, fits = f"0 <= S2 <= {MAX_SLOPE}", f"S2 multiplies int8 distances: clip it to 0..{MAX_SLOPE}."
    elif not 1 <= D2 <= D:
        bound, fits = f"1 <= D2 <= D = {D}", "The steep line ends first: let D be the larger of the two."
    elif not 0 <= f <= MAX_SHIFT:
        bound, fits = f"0 <= f <= {MAX_SHIFT}", "f = 2 brings B <= 1023 to uint8 scores."
    elif not 1 <= B <= INT16_MAX:
        bound, fits = f"1 <= B <= {INT16_MAX}", "B is the score of the row's maximum and fits int16."
    elif f and not 1 <= B >> f <= UINT8_MAX:
        bound = f"1 <= B >> f <= {UINT8_MAX}: a shift makes scores uint8"
        fits = f"Lower B to at most {(UINT8_MAX + 1 << f) - 1}, or leave f at 0."
    elif lost > B and second:
        bound, fits = f"B >= S*D + S2*D2 = {lost}", f"Raise B to {lost}, or lower S, S2, D or D2."
    elif lost > B:
        bound, fits = f"B >= S*D = {lost}", f"Raise B to {lost}, or lower S to at most {B // D}."
    else:
        return
    shown = f", S2 = {S2}, D2 = {D2}, f = {f}" if second else ""
    raise ParameterError(bound, f"B = {B}, S = {S}, D = {D}{shown}", fits)
