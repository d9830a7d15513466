"""The numbers by which the native code knows modes, masks, outputs and refusals: written once, in C++."""

from __future__ import annotations

from hccs.backends.cpu import _native
from hccs.numbers.modes import Mode

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
