"""`hccs.attention` by the native kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.codes import DEFERRED, DONE, MASK_LAYOUT, MASKING, MODES, OUTPUTS, refusal
from hccs.backends.cpu.instruction_sets import threads_for
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops.arguments import LOGITS

_DTYPES: dict[str, np.dtype[Any]] = {
    "pair": np.dtype(np.int32),
    "float32": np.dtype(np.float32),
    "int8": np.dtype(np.int8),
}

FEW_QUERIES = 4
"""For up to this many queries, packing keys and values does not pay: they are read in place."""

# Multiply-adds that are worth starting a thread for.
_WORK_PER_THREAD = 1 << 25
# For a thread of the pool, which is already waiting for work: decoding has one.
_WORK_PER_WAITING_THREAD = 1 << 20


def attention(
    q: Any,
    k: Any,
    v: Any,
    theta: HeadParams,
    requant: Requant,
    masking: int,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    out: str,
    threads: int | None,
) -> Any:
    """The named output of int8 arrays; half precision is left to the caller."""
    q, k, v = _with_contiguous_rows(q), _with_contiguous_rows(k), _with_contiguous_rows(v)
    decoding = q.shape[-2] <= FEW_QUERIES
    kernels = _native.decode if decoding else _native.attention
    if threads is None:
        work_each = _WORK_PER_WAITING_THREAD if decoding else _WORK_PER_THREAD
        threads = threads_for(2 * q.size * k.shape[-2], work_each)
    exact = out if out in _DTYPES else "float32"
    result = np.empty(q.shape, _DTYPES[exact])
    sums = np.empty(q.shape[:-1], np.int32) if out == "pair" else None
    operation = DEFERRED if mode is None else MODES[mode]

    def run() -> int:
        return kernels(
            q, k, v, theta.packed, requant.packed, MASKING[masking], valid, causal, operation, OUTPUTS[exact],
            result, sums, int(threads),
        )  # fmt: skip

    logits = (*q.shape[:-1], k.shape[-2])
    status = run()
    if status == MASK_LAYOUT:
        valid = np.ascontiguousarray(np.broadcast_to(valid, logits))
        status = run()
    if status != DONE:
        raise refusal(status, LOGITS, logits, theta, masking, valid, requant)
    return result if sums is None else (result, sums)


def _with_contiguous_rows(x: Any) -> Any:
    """Other strides, as of heads split out of one projection, need no copy."""
    return x if x.strides[-1] == 1 else np.ascontiguousarray(x)
