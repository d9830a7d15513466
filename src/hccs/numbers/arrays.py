"""Numbers that users give, as arrays: whatever cannot be one is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DtypeError, ParameterError, ShapeError


def numbers(name: str, value: Any, hint: str = "Give one value, or one per head.") -> NDArray[Any]:
    """Integers or floats as an array that may be empty."""
    array = array_of(name, value)
    _require_kind(name, array, "iuf", "a number or an array of numbers", hint)
    return array


def integers(
    name: str,
    value: Any,
    hint: str = "Head parameters are integers by definition; round them before.",
) -> NDArray[np.int32]:
    """At least one integer that fits int32, as an array."""
    array = array_of(name, value)
    require_some(name, array)
    _require_kind(name, array, "iu", "an integer or an integer array", hint)
    if array.min() < -(2**31) or array.max() >= 2**31:
        wrong = array.min() if array.min() < -(2**31) else array.max()
        raise ParameterError(f"{name} to fit int32", str(wrong), "See hccs.Region for what heads admit.")
    return array.astype(np.int32)


def positive(name: str, value: Any, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """At least one number that is positive and finite in `dtype`, as a new array."""
    array = numbers(name, value)
    require_some(name, array)
    with np.errstate(over="ignore", under="ignore"):
        rounded = array.astype(dtype)
    if not (np.isfinite(rounded) & (rounded > 0)).all():
        wrong = array[~(np.isfinite(rounded) & (rounded > 0))]
        raise ParameterError(
            f"{name} > 0 and finite in {np.dtype(dtype).name}",
            str(wrong.flat[0]),
            "A scale is the real value of one integer step; scale 0 comes from data that is all zeros.",
        )
    return rounded


def require_some(name: str, array: NDArray[Any]) -> None:
    if array.size == 0:
        raise ShapeError(f"{name} to hold at least one value", f"shape {array.shape}", "Pass one per head.")


def require_integer(name: str, value: Any, low: int, high: int, hint: str) -> int:
    """One integer from `low` to `high`; booleans are none."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:
        raise ParameterError(f"{name} to be an integer from {low} to {high}", repr(value), hint)
    return int(value)


def together(arrays: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ShapeError(
            f"{', '.join(arrays)} to broadcast together", shapes, "Give each one value, or one per head."
        ) from error


def array_of(name: str, value: Any) -> NDArray[Any]:
    """Anything that NumPy makes an array of."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors on a GPU or on meta
        reason = " ".join(str(error).split())
        raise ShapeError(f"{name} as an array", reason, "Give all rows the same length.") from error


def _require_kind(name: str, array: NDArray[Any], kinds: str, expected: str, hint: str) -> None:
    if array.dtype.kind not in kinds:
        raise DtypeError(f"{name} to be {expected}", f"dtype {array.dtype}", hint)


class Packed:
    """Parameters of one head or of many, kept as one read-only array whose last dimension has them all."""

    _packed: NDArray[np.int32]

    @property
    def packed(self) -> NDArray[np.int32]:
        return self._packed

    @property
    def shape(self) -> tuple[int, ...]:
        """() for one head, else the common shape of the parameters."""
        return self._packed.shape[:-1]

    def _identity(self) -> tuple[object, ...]:
        return self._packed.shape, self._packed.tobytes()

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())
