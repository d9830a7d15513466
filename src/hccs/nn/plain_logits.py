"""Forward and backward of `hccs_softmax` in plain torch, for float64.

Written with whole-tensor operations: it serves gradient checks, and being independent of the native loops it
is what the tests hold them against.
"""

from __future__ import annotations

import torch

from hccs.backends.cpu.float_logits import integers, not_finite, require_columns
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops.softmax import softmax

INT8_MIN, INT8_MAX = -128, 127


def rounded(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """z / scale rounded half to even, in float32 (float64 for float64)."""
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    return torch.div(wide, scale[..., None, None].to(wide.dtype)).round_()


def forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only."""
    theta = integers(theta)
    require_columns(theta, z.shape[-1])
    real = rounded(z.detach(), scale)
    if bool(real.isnan().any()):
        raise not_finite()
    wide = real.clamp(-32768, 32767).to(torch.int16)
    x = wide.clamp(INT8_MIN, INT8_MAX).to(torch.int8).contiguous()
    p = softmax(x, HeadParams(*theta.numpy().transpose(-1, *range(theta.ndim - 1))), mode, valid)
    return p.to(z.dtype) / mode.T, wide


def backward(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dL/dz in g's dtype and, when learning, dL/d(B, S, D, scale) of every row [..., q, 4]."""
    theta = integers(theta)
    B, S, D = (theta[..., i, None, None].to(g.dtype) for i in range(3))
    per_step = scale[..., None, None].to(g.dtype)
    valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
    clamped = x.clamp(INT8_MIN, INT8_MAX).to(g.dtype)
    distance = clamped.masked_fill(~valid, INT8_MIN).amax(-1, keepdim=True) - clamped
    free, peak = (distance <= D) & valid, (distance == 0) & valid
    delta = torch.minimum(distance, D)  #                             eq. 2
    s = (B - S * delta) * valid  #                                    eq. 3
    Z = s.sum(-1, keepdim=True).clamp(min=1)  #                       eq. 5
    t = (g - (g * s).sum(-1, keepdim=True) / Z) / Z * valid  #        dL/ds
    share = (t * free).sum(-1, keepdim=True) / peak.sum(-1, keepdim=True).clamp(min=1)
    dx = S * (t * free - share * peak) * (x == clamped)
    if not learn:
        return dx / per_step, torch.empty(0, 4)
    beyond = -(t * ~free * S).sum(-1)
    return dx / per_step, torch.stack(
        [t.sum(-1), -(t * delta).sum(-1), beyond, -(dx * clamped).sum(-1) / per_step[..., 0]], -1
    )
