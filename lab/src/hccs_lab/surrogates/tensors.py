"""What only tensors need: masked floats, a refusal of NaN, the straight-through quantiser."""

from __future__ import annotations

import torch

from hccs.ops.arguments import not_finite
from hccs.ops.quantise import INT8_MAX, INT8_MIN, divided
from hccs_lab.surrogates.rows import FAR_BELOW


def far_below(z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Logits in float32 or wider, masked columns far below; `entmax` subtracts the maximum itself."""
    return z.to(torch.promote_types(z.dtype, torch.float32)).masked_fill(~valid, FAR_BELOW)


def require_numbers(z: torch.Tensor) -> None:
    """Refuse NaN, which would become an integer silently."""
    if bool(z.isnan().any()):
        raise not_finite()


def quantised(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The logits as int8 steps of `scale` tell them, in z's dtype: gradient 1 inside the range, 0 outside."""
    inside = divided(z, scale).clamp(INT8_MIN, INT8_MAX)
    steps = scale[..., None, None].to(inside.dtype)
    return ((inside + (inside.round() - inside).detach()) * steps).to(z.dtype)
