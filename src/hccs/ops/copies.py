"""Lengths and masks that a caller holds on the host, on a device: copied once, known by their content.

A copy waits for the device, which a call on a GPU should not. The last few small ones are kept, and found by
their bytes: an array that was changed in place is another one. Torch is never imported here, as nobody holds
a tensor before it is loaded.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

MOST_BYTES = 1 << 14
"""The largest copy that is kept: looking at more content takes as long as copying it."""

MOST_KEPT = 64

_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_kept: dict[tuple[Any, ...], Any] = {}
# Those whose addresses CUDA graphs have recorded.
_recorded: dict[int, Any] = {}


def kept(valid: Any, device: Any, columns: int) -> Any:
    """The copy that `copied` made of the same content for rows of `columns`; None without one."""
    known = _content(valid, device, columns)
    found = None if known is None else _kept.get(known)
    return None if found is None else held(found)


def held(tensor: Any) -> Any:
    """A tensor, kept for good if the launch that reads it is being recorded in a CUDA graph."""
    if tensor.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing():
        _recorded[tensor.data_ptr()] = tensor
    return tensor


def copied(valid: Any, device: Any, columns: int) -> Any:
    """A host array or tensor on the device, kept where it is small: what has this copy only reads it."""
    torch = sys.modules["torch"]
    known = _content(valid, device, columns)
    plain = torch.from_numpy(valid.copy()) if type(valid) is np.ndarray else valid
    found = plain.to(device, copy=True)
    if known is not None:
        if len(_kept) >= MOST_KEPT:
            # A kernel on another stream than that of the copy may still read it.
            for used in {tensor.device for tensor in _kept.values() if tensor.is_cuda}:
                torch.cuda.synchronize(used)
            _kept.clear()
        _kept[known] = found
    return found


def _content(valid: Any, device: Any, columns: int) -> tuple[Any, ...] | None:
    """What a copy is known by; None for what is not kept."""
    if type(valid) is not np.ndarray:
        torch = sys.modules["torch"]
        if type(valid) is not torch.Tensor or valid.device.type != "cpu" or valid.layout != torch.strided:
            return None
        if str(valid.dtype).removeprefix("torch.") not in _INTEGERS:
            return None
        valid = valid.numpy()
    return None if valid.nbytes > MOST_BYTES else (valid.tobytes(), valid.dtype, valid.shape, device, columns)
