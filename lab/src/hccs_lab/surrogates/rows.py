"""Rows of int8 logits as every method takes them: checked arguments, distances, tables, number formats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ShapeError
from hccs.numbers.arrays import numbers, positive
from hccs.ops import arguments
from hccs.ops.quantise import INT8_MAX as INT8_MAX
from hccs.ops.quantise import INT8_MIN as INT8_MIN

REQUANTISATION_BITS = 16


def wide(x: Any) -> Any:
    """An array or a tensor in int64."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def largest(x: Any, valid: Any, low: int = INT8_MIN) -> Any:
    """The largest integer of the valid columns of arrays and tensors alike, [..., 1]; `low` where none is."""
    lifted = low + (x - low) * valid
    if isinstance(lifted, np.ndarray):
        return lifted.max(-1, keepdims=True, initial=low)
    return lifted.amax(-1, keepdim=True)


def distance(x: Any, valid: Any) -> Any:
    """m - x with m the maximum over valid columns, 0..255, for arrays and tensors alike.

    Masked columns get 0, and so do empty rows.
    """
    logits = wide(x)
    return (largest(logits, valid) - logits) * valid


def maximum(z: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
    """The maximum of float logits over valid columns, [..., 1]; 0 for empty rows."""
    m = np.where(valid, z, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    return np.where(np.isfinite(m), m, 0)


FAR_BELOW = -1e6
"""A masked logit of sparsemax or entmax, relative to the maximum: outside any support, yet summed exactly."""


def shifted(z: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """z less the maximum over valid columns; masked columns far below."""
    return np.where(valid, z - maximum(z, valid), FAR_BELOW)


def look_up(table: Any, index: Any) -> Any:
    """table[..., index] with a table per head, [..., 1, entries], and indices [..., q, k], in either kind."""
    shape = (*index.shape[:-1], table.shape[-1])
    if isinstance(index, np.ndarray):
        return np.take_along_axis(np.broadcast_to(table, shape), index, -1)
    return table.expand(shape).gather(-1, index)


def multiplier_for(ratio: NDArray[np.float64]) -> NDArray[np.int64]:
    """The fixed-point multiplier, with 16 fraction bits, that takes int8 logits to another scale."""
    return np.maximum(np.rint(ratio * (1 << REQUANTISATION_BITS)), 1).astype(np.int64)


def requantised(x: Any, multiplier: Any) -> Any:
    """x * ratio rounded half up and clipped to int8, for int64 arrays and tensors alike."""
    half = 1 << (REQUANTISATION_BITS - 1)
    return ((x * multiplier + half) >> REQUANTISATION_BITS).clip(INT8_MIN, INT8_MAX)


def leading_bit(x: Any) -> Any:
    """floor(log2 x) of integers x >= 1 in int64, for arrays and tensors alike."""
    found = 0
    for step in (32, 16, 8, 4, 2, 1):
        more = step * (x >> step > 0)
        x, found = x >> more, found + more
    return found


def divided_to_even(a: Any, b: Any) -> Any:
    """a / b of integers a >= 0, b > 0 rounded to the nearest, ties to even, for arrays and tensors alike."""
    quotient = (2 * a + b) // (2 * b)
    tied = 2 * b * quotient == 2 * a + b
    return quotient - (quotient & (1 * tied))


def to_bfloat16(x: Any) -> NDArray[np.float32]:
    """The nearest bfloat16 of finite values, ties to even, as float32, since NumPy has no such type.

    >>> to_bfloat16([1.0, 1.00390625, 1.01171875]).tolist()
    [1.0, 1.0, 1.015625]
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def from_bfloat16_bits(bits: Any) -> NDArray[np.float32]:
    """The values that 16-bit patterns stand for.

    >>> from_bfloat16_bits([16256, 16128]).tolist()
    [1.0, 0.5]
    """
    return (np.ascontiguousarray(bits, np.uint32) << 16).view(np.float32)


def checked_logits(x: Any, valid: Any) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """`x` as an int8 array of at least one row, and the mask of its shape that `valid` stands for.

    None stands for every column, but for those that a masked array masks.
    """
    if isinstance(x, np.ma.MaskedArray):
        x, valid = arguments.unmasked("x", x, valid)
    array = np.asarray(x)
    arguments.require_int8("x", array, "Quantise float logits first: hccs.calibration.quantise(z, scale).")
    if array.ndim == 0:
        raise arguments.scalar("x")
    mask: NDArray[np.bool_] = np.asarray(arguments.as_mask(valid, array.shape))
    return array, mask


def checked_heads(values: dict[str, Any], lead: tuple[int, ...] | None) -> dict[str, NDArray[np.float64]]:
    """Scale and parameters as float64 arrays of one shape, one entry per head, that broadcasts against
    `lead`."""
    hint = "Give one number per head."
    arrays = {name: numbers(name, value, hint).astype(np.float64) for name, value in values.items()}
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    try:
        common = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        if lead is not None and np.broadcast_shapes(common, lead) != lead:
            raise ValueError
    except ValueError as error:
        against = "together" if lead is None else f"against x.shape[:-2] = {lead}"
        raise ShapeError(
            f"scale and parameters to broadcast {against}",
            shapes,
            "For logits [batch, heads, q, k] give one value per head: shape [heads].",
        ) from error
    positive("scale", arrays["scale"])
    return {name: np.broadcast_to(array, common) for name, array in arrays.items()}
