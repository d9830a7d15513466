"""`hccs.softmax` by the native kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.codes import DONE, MASK_LAYOUT, MASKING, MODES, refusal
from hccs.backends.cpu.instruction_sets import threads_for
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode

# Below this many elements per thread, starting the thread costs more than it saves.
_ELEMENTS_PER_THREAD = 1 << 21


def softmax(
    x: Any, theta: HeadParams, mode: Mode, masking: int, valid: Any, out: Any, threads: int | None
) -> None:
    """Fill `out` with the probabilities of int8 logits."""
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    if threads is None:
        threads = threads_for(x.size, _ELEMENTS_PER_THREAD)
    heads, number, kind = theta.packed, MODES[mode], MASKING[masking]
    status = _native.softmax(x, heads, number, kind, valid, out, threads)
    if status == MASK_LAYOUT:
        valid = np.ascontiguousarray(np.broadcast_to(valid, x.shape))
        status = _native.softmax(x, heads, number, kind, valid, out, threads)
    if status != DONE:
        raise refusal(status, "x.shape", x.shape, theta, masking, valid)
