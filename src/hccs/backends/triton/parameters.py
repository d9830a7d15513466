"""Parameters on the device, kept: their copy takes longer than a small call."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.requant import Requant


@lru_cache(maxsize=256)
def heads_on(theta: HeadParams, device: torch.device) -> torch.Tensor:
    """`theta.packed`: (B, S, D) per head, int32 [..., 3], or [..., 6] of the wide form."""
    return torch.tensor(theta.packed, device=device)


@lru_cache(maxsize=256)
def heads_and_factors_on(theta: HeadParams, requant: Requant, device: torch.device) -> torch.Tensor:
    """B, S, D, S2, D2, f, then the five integers of `Requant.packed`, per head, int32 [..., 11]."""
    shape = np.broadcast_shapes(theta.shape, requant.shape)
    six = np.stack([np.broadcast_to(getattr(theta, name), theta.shape) for name in NAMES], axis=-1)
    parts = [np.broadcast_to(part, (*shape, part.shape[-1])) for part in (six, requant.packed)]
    return torch.tensor(np.concatenate(parts, axis=-1).astype(np.int32), device=device)
