"""Forward and backward of `hccs_softmax` with two lines or wide sums in plain torch, on any device.

GPUs have a kernel for the paper's form alone; what has two lines runs here, a dozen operations a layer, with
the same bits.
"""

from __future__ import annotations

import torch

from hccs.nn.plain_logits import backward
from hccs.numbers.modes import DIVISOR_BITS, LINEAR_TOP, Mode
from hccs.ops.arguments import as_mask
from hccs.ops.quantise import INT8_MAX, INT8_MIN, divided

__all__ = ["backward", "forward"]


def forward(
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
