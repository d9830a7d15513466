"""Refusals of data that only kernels see, raised without a host synchronisation.

A kernel that meets a value it cannot take marks a byte in the host's memory, and the next call on that
device raises the refusal, as does `hccs.ops.synchronise`. The host only ever looks at its own memory: no
call waits for the device. Each kernel says what the rows of such a value hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl

from hccs.errors import HccsError, ParameterError
from hccs.ops.arguments import bad_scale, lengths_outside, not_finite

# One byte each.
NAN, THETA, SCALE, LENGTH, OPERAND = (tl.constexpr(place) for place in range(5))

_HINT = "It was found in an earlier call on this device, whose result is not to be used."


@dataclass(frozen=True)
class _Bytes:
    """Eight bytes that a device can write, and the host's view of them as one number."""

    tensor: torch.Tensor
    seen: np.ndarray[Any, np.dtype[np.int64]]


_marked: dict[torch.device, _Bytes] = {}


def fault_bytes(device: torch.device) -> torch.Tensor:
    """The bytes that a kernel on this device marks; raises what earlier kernels marked."""
    found = _marked.get(device)
    if found is None:
        # Memory that the device writes directly; kernels in Triton's interpreter run on the host anyway.
        tensor = torch.zeros(8, dtype=torch.int8, pin_memory=device.type == "cuda")
        found = _marked[device] = _Bytes(tensor, tensor.numpy().view(np.int64))
    elif found.seen[0]:
        raise _refusal(found, device)
    return found.tensor


def _refusal(found: _Bytes, device: torch.device) -> HccsError:
    marked = found.tensor.tolist()
    found.tensor.zero_()
    first = marked.index(1)
    error: HccsError = {
        NAN.value: not_finite(),
        THETA.value: ParameterError(
            "theta that integers can run: 1 <= D <= 127, 0 <= S <= 127, S*D <= B, columns * B <= 32767",
            "another theta",
            "See hccs.HeadParams.",
        ),
        SCALE.value: bad_scale("another scale"),
        LENGTH.value: lengths_outside("beyond it"),
        OPERAND.value: not_finite("q, k and v"),
    }[first]
    expected, got, hint = error.args
    return type(error)(expected, f"{got} on {device}", f"{hint} {_HINT}")


def synchronise() -> None:
    """Wait for all devices, and raise what their kernels marked."""
    for device in list(_marked):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fault_bytes(device)
