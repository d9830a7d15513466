"""The numbers by which the native code knows modes, masks, outputs and refusals, and the errors of these."""

from __future__ import annotations

from typing import Any

from hccs.backends.cpu import _native
from hccs.errors import HccsError
from hccs.numbers.modes import Mode
from hccs.ops.arguments import lengths_outside, require_shapes, shared_memory

DONE = _native.DONE
LENGTH_RANGE = _native.LENGTH_RANGE
MASK_LAYOUT = _native.MASK_LAYOUT
OVERLAP = _native.OVERLAP

MASKING = (_native.NO_MASK, _native.LENGTHS, _native.MASK)
"""In the order of `hccs.ops.arguments`: none, lengths, mask."""

MODES = {Mode(name): number for number, name in enumerate(_native.MODES)}
DEFERRED = _native.DEFERRED
"""In the place of a mode: attention divides its output alone."""

OUTPUTS = {name: number for number, name in enumerate(_native.OUTPUTS)}


def refusal(status: int, what: str, shape: tuple[int, ...], *arguments: Any) -> HccsError:
    """The error for a status; `arguments` are those of `require_shapes`."""
    _, _, valid, *_ = arguments
    if status == LENGTH_RANGE:
        return lengths_outside(f"from {valid.min()} to {valid.max()}", shape[-1])
    if status == OVERLAP:
        return shared_memory()
    require_shapes(what, shape, *arguments)
    raise AssertionError(f"the native code refuses what hccs.ops takes: status {status}")
