"""`rows.py` for torch: distances from the maximum, look-ups, the straight-through quantiser."""

from __future__ import annotations

import torch

from hccs.ops.arguments import not_finite
from hccs.ops.quantise import INT8_MAX, INT8_MIN, divided


def distance(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """m - x with m the maximum over valid columns, int64. Masked columns get 0, and so do empty rows."""
    wide = x.to(torch.int64)
    m = wide.masked_fill(~valid, INT8_MIN).amax(-1, keepdim=True)
    return (m - wide).masked_fill_(~valid, 0)


def look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[..., index] with one table per head, [..., 1, entries], and indices [..., q, k]."""
    return torch.gather(table.expand(*index.shape[:-1], table.shape[-1]), -1, index)


def require_numbers(z: torch.Tensor) -> None:
    """Refuse NaN: it would become some integer without a word."""
    if bool(z.isnan().any()):
        raise not_finite()


def quantised(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The logits as int8 steps of `scale` tell them, in z's dtype: gradient 1 inside the range, 0 outside."""
    inside = divided(z, scale).clamp(INT8_MIN, INT8_MAX)
    steps = scale[..., None, None].to(inside.dtype)
    return ((inside + (inside.round() - inside).detach()) * steps).to(z.dtype)
