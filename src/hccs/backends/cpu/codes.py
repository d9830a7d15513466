"""The numbers by which the native code knows modes, masks, outputs and refusals.

Read from it, so that they are written once: in C++.
"""

from __future__ import annotations

from typing import Any

from hccs.backends.cpu import _native
from hccs.numbers.modes import Mode


def _code(name: str, otherwise: Any) -> Any:
    return getattr(_native, name, otherwise)


DONE: int = _code("DONE", 0)
LENGTH_RANGE: int = _code("LENGTH_RANGE", 3)
MASK_LAYOUT: int = _code("MASK_LAYOUT", 4)
OVERLAP: int = _code("OVERLAP", 5)

MASKING: tuple[int, int, int] = (_code("NO_MASK", 0), _code("LENGTHS", 1), _code("MASK", 2))
"""In the order of `hccs.ops.arguments`: none, lengths, mask."""

MODES: dict[Mode, int] = {Mode(name): i for i, name in enumerate(_code("MODES", [*Mode]))}
DEFERRED: int = _code("DEFERRED", -1)
"""In the place of a mode: attention divides its output alone."""

OUTPUTS: dict[str, int] = {
    name: i for i, name in enumerate(_code("OUTPUTS", ["pair", "float32", "int8"]))
}  # fmt: skip
