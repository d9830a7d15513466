"""Parameters on the device, kept: their copy takes longer than a small call.

The last 256 tables of a kind are kept, and for good those whose address a CUDA graph has recorded.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.requant import Requant
from hccs.ops import copies


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
