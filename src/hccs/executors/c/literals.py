"""Arrays of constants as C.

Bytes are written as string literals, a row in each: a compiler reads four million of them in a second, and
needs eleven for as many numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_STRING = 2048
"""Bytes of a literal; C99 promises 4095 characters."""

_OCTAL = np.array([b"\\%03o" % value for value in range(256)])


def array(name: str, values: NDArray[Any]) -> str:
    """The definition of an array: bytes as rows of string literals, wider integers as numbers."""
    if values.dtype == np.int8:
        width = _row_width(values.shape)
        rows = values.reshape(-1, width)
        return f"static const int8_t {name}[{len(rows)}][{width}] = {{\n{_literals(rows)}}};\n"
    return f"static const {values.dtype.name}_t {name}[{values.size}] = {{\n{numbers_of(values.ravel())}}};\n"


def as_bytes(name: str) -> str:
    """An array of `array` as the address of its first byte."""
    return f"(const int8_t*){name}"


def _row_width(shape: tuple[int, ...]) -> int:
    """The largest part of a row that one literal may hold."""
    width = shape[-1]
    return next(part for part in range(min(width, LONGEST_STRING), 0, -1) if width % part == 0)


def _literals(rows: NDArray[np.int8]) -> str:
    escaped = _OCTAL[rows.view(np.uint8)]  # four characters each
    return "".join(f'"{row.tobytes().decode("ascii")}",\n' for row in escaped)


def numbers_of(values: NDArray[Any], per_line: int = 16) -> str:
    """Numbers for an initialiser."""
    numbers = [str(value) for value in values.tolist()]
    lines = [", ".join(numbers[i : i + per_line]) for i in range(0, len(numbers), per_line)]
    return ",\n".join(f"    {line}" for line in lines)
