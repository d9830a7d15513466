"""The abilities of a GPU, its choice for a launch, and the parameters of heads that lie on it.

A copy takes longer than a small call: the last 256 tables of a kind are kept, and for good those whose
address a CUDA graph has recorded.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.requant import Requant
from hccs.ops import copies

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


MOST_OVERLAPPED = 8192
"""Rows of a launch that gains by it: those of larger ones take room from the launch that is still running."""


def overlapping(device: torch.device, rows: int) -> dict[str, Any]:
    """Options of a launch whose programs may be placed while the launch before it ends, where a GPU can.

    Its kernel begins with `wait_for_launch_before`.
    """
    able = capability(device) >= HOPPER and rows <= MOST_OVERLAPPED
    return {"OVERLAPS": able, "launch_pdl": True} if able else {"OVERLAPS": False}


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    """Of the GPU; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device; changing to it takes time even where nothing changes."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def heads_on(theta: HeadParams, device: torch.device) -> torch.Tensor:
    """`theta.packed`: (B, S, D) per head, int32 [..., 3], or [..., 6] of the wide form."""
    table: torch.Tensor = copies.held(_heads_on(theta, device))
    return table


def lines_on(theta: HeadParams, in_upper_bytes: bool, device: torch.device) -> torch.Tensor:
    """`full_rows_wide`'s table, int32 [..., 6]: D, D2, the least score in both halves of a word, S, S2, f.

    Scores that a shift makes bytes come out in the upper bytes of 16 bits: lines are moved up as far.
    """
    table: torch.Tensor = copies.held(_lines_on(theta, in_upper_bytes, device))
    return table


@lru_cache(maxsize=256)
def _heads_on(theta: HeadParams, device: torch.device) -> torch.Tensor:
    return torch.tensor(theta.packed, device=device)


@lru_cache(maxsize=256)
def _lines_on(theta: HeadParams, in_upper_bytes: bool, device: torch.device) -> torch.Tensor:
    B, S, D, S2, D2, f = (getattr(theta, name) for name in NAMES)
    up = 8 - np.asarray(f, np.int64) if in_upper_bytes else 0
    least = ((B - S * D - S2 * D2) << up) * 0x10001
    six = np.stack(np.broadcast_arrays(D, D2, least, S << up, S2 << up, f), axis=-1)
    return torch.tensor(six.astype(np.uint32).view(np.int32), device=device)


@lru_cache(maxsize=256)
def heads_and_factors_on(theta: HeadParams, requant: Requant, device: torch.device) -> torch.Tensor:
    """B, S, D, S2, D2, f, then the five integers of `Requant.packed`, per head, int32 [..., 11]."""
    shape = np.broadcast_shapes(theta.shape, requant.shape)
    six = np.stack([np.broadcast_to(getattr(theta, name), theta.shape) for name in NAMES], axis=-1)
    parts = [np.broadcast_to(part, (*shape, part.shape[-1])) for part in (six, requant.packed)]
    return torch.tensor(np.concatenate(parts, axis=-1).astype(np.int32), device=device)
