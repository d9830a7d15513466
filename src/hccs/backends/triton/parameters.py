"""Parameters on the device, kept: their copy takes longer than a small call."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from hccs.numbers.heads import HeadParams
from hccs.numbers.requant import Requant


@lru_cache(maxsize=256)
def heads_on(theta: HeadParams, device: torch.device) -> torch.Tensor:
    """(B, S, D) per head, int32 [..., 3]."""
    return torch.tensor(theta.packed, device=device)


@lru_cache(maxsize=256)
def heads_and_factors_on(theta: HeadParams, requant: Requant, device: torch.device) -> torch.Tensor:
    """B, S, D, then the five integers of `Requant.packed`, per head, int32 [..., 8]."""
    shape = np.broadcast_shapes(theta.shape, requant.shape)
    parts = [np.broadcast_to(part.packed, (*shape, part.packed.shape[-1])) for part in (theta, requant)]
    return torch.tensor(np.concatenate(parts, axis=-1), device=device)
