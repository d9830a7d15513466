"""`hccs.attention` of few queries over many keys, as in generation, by the native kernels for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.codes import DEFERRED, DONE, MASK_LAYOUT, MASKING, MODES, OUTPUTS
from hccs.backends.cpu.instruction_sets import threads_for
from hccs.backends.cpu.refusals import refusal
from hccs.ops.arguments import LOGITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.numbers.heads import HeadParams
    from hccs.numbers.modes import Mode
    from hccs.numbers.requant import Requant

FEW_QUERIES = 4
"""Up to so many it is not worth to pack keys and values for them."""

# Multiply-adds from which on a second thread, which waits for work already, is of use.
_WORK_PER_THREAD = 1 << 20


def attention(
    q: NDArray[np.int8],
    k: NDArray[np.int8],
    v: NDArray[np.int8],
    theta: HeadParams,
    requant: Requant,
    masking: int,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    result: NDArray[Any],
    out: str,
    threads: int | None,
) -> NDArray[np.int32] | None:
    """Fill `result` with the output "pair", "float32" or "int8"; returns, for "pair", the row sums."""
    if threads is None:
        threads = threads_for(2 * q.size * k.shape[-2], _WORK_PER_THREAD)
    sums = np.empty(q.shape[:-1], np.int32) if out == "pair" else None
    operation = DEFERRED if mode is None else MODES[mode]

    def run() -> int:
        status: int = _native.decode(
            q, k, v, theta.packed, requant.packed, MASKING[masking], valid, causal, operation, OUTPUTS[out],
            result, sums, int(threads),
        )  # fmt: skip
        return status

    logits = (*q.shape[:-1], k.shape[-2])
    status = run()
    if status == MASK_LAYOUT:
        valid = np.ascontiguousarray(np.broadcast_to(valid, logits))
        status = run()
    if status != DONE:
        raise refusal(status, LOGITS, logits, theta, masking, valid, requant)
    return sums
