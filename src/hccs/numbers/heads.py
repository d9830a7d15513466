"""`HeadParams`: theta = (B, S, D) of one head or of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hccs.errors import DtypeError, ParameterError, ShapeError
from hccs.numbers.modes import INT16_MAX, MAX_DISTANCE, MAX_SLOPE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def integers(name: str, value: ArrayLike) -> NDArray[np.int32]:
    """Whole numbers that fit int32, as an array; anything else is refused under `name`."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"{name} as an array", str(error), "Give all rows the same length.") from error
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


@dataclass(frozen=True, eq=False, init=False)
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

    B: int | NDArray[np.int32]
    S: int | NDArray[np.int32]
    D: int | NDArray[np.int32]

    def __init__(self, B: ArrayLike, S: ArrayLike, D: ArrayLike) -> None:
        arrays = {"B": integers("B", B), "S": integers("S", S), "D": integers("D", D)}
        try:
            together = np.broadcast_arrays(*arrays.values())
        except ValueError as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ShapeError(
                "B, S and D to broadcast together", shapes, "Give each one value, or one per head."
            ) from error
        packed = np.stack(together, axis=-1)
        packed.flags.writeable = False
        for b, s, d in packed.reshape(-1, 3).tolist():
            _require_runnable(b, s, d)
        for i, name in enumerate("BSD"):
            object.__setattr__(self, name, packed[..., i] if packed.ndim > 1 else int(packed[i]))
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
