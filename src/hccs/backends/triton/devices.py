"""The abilities of a GPU, and its choice for a launch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton interprets kernels on the host, which knows no machine instructions."""

FUSED = {"enable_fp_fusion": True}
"""An option of every kernel: a product and a sum may be one instruction. Versions of Triton
differ in what they take for granted, and some warn of it."""

HOPPER = (9, 0)
"""The compute capability from which on registers hold two 16-bit integers to compute with."""


@lru_cache(maxsize=16)
def capability(device: torch.device) -> tuple[int, int]:
    """Of an NVIDIA GPU; (0, 0) for AMD's, which run no PTX, and for the interpreter."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0, 0
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    """Of the GPU; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device; changing to it takes time even where nothing changes."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
