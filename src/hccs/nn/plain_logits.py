"""Forward and backward of `hccs_softmax` in plain torch.

Written with whole-tensor operations. `forward` and `backward` serve float64, as gradient checks use it, and
being independent of the native loops they are what the tests hold them against. GPUs have a kernel for the
paper's form alone: two lines and wide sums run there by `forward_wide`, a dozen operations a layer.
"""

from __future__ import annotations

import torch

from hccs.numbers.modes import DIVISOR_BITS, LINEAR_TOP, Mode
from hccs.ops.arguments import as_mask, heads_of, not_finite, require_scale
from hccs.ops.dispatch import backend
from hccs.ops.quantise import INT8_MAX, INT8_MIN, divided
from hccs.ops.softmax import softmax


def forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only."""
    if z.device.type != "cpu":
        return forward_wide(z, theta, scale, valid, mode)
    as_array = backend("float_logits", "cpu").as_array
    heads = heads_of(as_array(theta), z.shape[-1])
    require_scale(as_array(scale))
    real = divided(z.detach(), scale).round_()
    if bool(real.isnan().any()):
        raise not_finite()
    wide = real.clamp(-32768, 32767).to(torch.int16)
    x = wide.clamp(INT8_MIN, INT8_MAX).to(torch.int8).contiguous()
    p = softmax(x, heads, mode, valid)
    return p.to(z.dtype) / mode.T, wide


def forward_wide(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only.

    Rows with NaN logits become NaN: looking for them would wait for the device.
    """
    real = divided(z.detach(), scale).round_()
    wide = real.nan_to_num().clamp(-32768, 32767).to(torch.int16)
    x = wide.clamp(INT8_MIN, INT8_MAX).to(torch.int32)
    mask = None if valid is None else torch.as_tensor(as_mask(valid, tuple(z.shape), "z.shape"))
    s = _scores(x, theta.detach().round().to(torch.int32), mask)
    rho, shift = _reciprocal(s.sum(-1, keepdim=True).clamp(min=1), mode)
    p = ((s * rho) >> shift).clamp(max=mode.T).to(torch.float32) / mode.T
    no_number = real.isnan().any(-1, keepdim=True)
    return p.masked_fill(no_number, torch.nan).to(z.dtype), wide


def _scores(x: torch.Tensor, theta: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    B, S, D, S2, D2, f = (theta[..., i, None, None] for i in range(6))
    seen = x if mask is None else x.masked_fill(~mask, INT8_MIN)
    distance = seen.amax(-1, keepdim=True) - x
    s = (B - S * torch.minimum(distance, D) - S2 * torch.minimum(distance, D2)) >> f
    return s if mask is None else s.masked_fill(~mask, 0)


def _reciprocal(Z: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
    """`hccs.reference.softmax.wide_reciprocal` of every row."""
    Z = Z.long()
    k = torch.frexp(Z.double())[1].long() - 1
    shift = (k + mode.spare_bits).int()
    if mode.is_clb:
        rho = torch.full_like(Z, mode.T << mode.spare_bits)
    elif mode.is_linear:
        line = LINEAR_TOP - (((Z << DIVISOR_BITS) >> k) >> 1)
        rho = ((mode.T * line) >> DIVISOR_BITS) << mode.spare_bits
    else:
        rho = (mode.T << (DIVISOR_BITS + mode.spare_bits)) // -((-Z << DIVISOR_BITS) >> k)
    return rho.int(), shift


def backward(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dL/dz in g's dtype and, when learning, dL/d(theta, scale) of every row [..., q, 4], of two lines 7."""
    theta = theta.detach().round()
    B, S, D, *second = (theta[..., i, None, None].to(g.dtype) for i in range(theta.shape[-1]))
    S2, D2 = (second[0], second[1]) if second else (torch.zeros_like(S), torch.ones_like(D))
    per_step = scale[..., None, None].to(g.dtype)
    valid = torch.as_tensor(as_mask(valid, tuple(x.shape), "z.shape"), device=x.device)
    clamped = x.clamp(INT8_MIN, INT8_MAX).to(g.dtype)
    distance = clamped.masked_fill(~valid, INT8_MIN).amax(-1, keepdim=True) - clamped
    free, free2, peak = (distance <= D) & valid, (distance <= D2) & valid, (distance == 0) & valid
    delta, delta2 = torch.minimum(distance, D), torch.minimum(distance, D2)  # eq. 2
    s = (B - S * delta - S2 * delta2) * valid  #                              eq. 3
    Z = s.sum(-1, keepdim=True).clamp(min=1)  #                               eq. 5
    t = (g - (g * s).sum(-1, keepdim=True) / Z) / Z * valid  #                dL/ds
    lost = t * (S * free + S2 * free2)
    share = lost.sum(-1, keepdim=True) / peak.sum(-1, keepdim=True).clamp(min=1)
    dx = (lost - share * peak) * (x == clamped)
    if not learn:
        return dx / per_step, torch.empty(0, theta.shape[-1] + 1, device=x.device)
    of_theta = [t.sum(-1), -(t * delta).sum(-1), -(t * ~free * S).sum(-1)]
    if second:
        # f scales all scores alike: nothing depends on it.
        of_theta += [-(t * delta2).sum(-1), -(t * ~free2 * S2).sum(-1), torch.zeros_like(of_theta[0])]
    return dx / per_step, torch.stack([*of_theta, -(dx * clamped).sum(-1) / per_step[..., 0]], -1)
