"""`hccs_softmax` on float logits: quantise, the exact integers forward, straight-through backward.

Two operators are registered with `torch.library`, so that the function survives `torch.compile` and
`torch.export`: `hccs::softmax_logits` and its backward. On CPU the integers come from the native kernels, on
CUDA each operator is one Triton kernel, of two lines a dozen operations of torch.
"""

from __future__ import annotations

from typing import Any

import torch

from hccs.errors import DtypeError
from hccs.nn import plain_logits
from hccs.numbers.heads import ONE_LINE, HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import arguments
from hccs.ops.dispatch import backend
from hccs.ops.quantise import quantise

__all__ = ["hccs_softmax", "quantise", "surrogate"]


def hccs_softmax(
    z: torch.Tensor,
    theta: HeadParams | torch.Tensor,
    scale: float | torch.Tensor,
    mode: Mode | str = "i16_div",
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """HCCS probabilities p_hat / T of float logits `z` [..., q, k], in z's dtype and differentiable.

    `theta` is `HeadParams` or a tensor [..., 3] of (B, S, D), or [..., 6] of (B, S, D, S2, D2, f); its shape
    and that of `scale` broadcast against z.shape[:-2]. A float tensor theta is rounded, and it and `scale`
    get gradients if they ask for them.
    `valid` is a boolean mask that broadcasts to z.shape, or integer row lengths that broadcast to
    z.shape[:-1]; other columns get exactly zero. NaN logits, a theta that no integers could run and scales
    that are not positive are refused; on CUDA such rows become NaN, and the refusal comes with the next call
    on that device or with `hccs.ops.synchronise()`.

    >>> z = torch.tensor([[1.0, 0.3, -0.2, -9.0]], requires_grad=True)
    >>> p = hccs_softmax(z, HeadParams(B=444, S=11, D=40), scale=0.1, mode="u8_div")
    >>> (p * 255).round().int().tolist()
    [[100, 83, 70, 0]]
    """
    if not z.is_floating_point():
        raise DtypeError("z to be float logits", f"dtype {z.dtype}", "For int8 logits use hccs.softmax.")
    if z.ndim == 0:
        raise arguments.scalar("z")
    if isinstance(theta, HeadParams):
        theta.require_columns(z.shape[-1])
        theta = torch.tensor(theta.packed, device=z.device)
    if not isinstance(scale, torch.Tensor):
        arguments.require_scale(scale)
        scale = torch.tensor(scale, dtype=torch.float32, device=z.device)
    arguments.require_per_head("theta", theta.shape[:-1], z.shape[:-2], "z.shape")
    arguments.require_per_head("scale", scale.shape, z.shape[:-2], "z.shape")
    if valid is not None:
        arguments.require_selection(arguments.kind_of(valid), valid, z.shape, "z.shape")
    if torch.compiler.is_compiling():
        p: torch.Tensor = torch.ops.hccs.softmax_logits(z, theta, scale, valid, Mode(mode).value)[0]
    else:
        p = _Eager.apply(z, theta, scale, valid, Mode(mode))
    return p


def surrogate(x: torch.Tensor, theta: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The real-valued function whose gradient stands in for the integers': p = s / Z on real x [..., q, k].

    Plain differentiable torch, written to be read: the fast backward passes are held against its autograd.
    The shift f of two lines scales all scores alike and is left out.
    """
    B, S, D, *second = (theta[..., i, None, None].to(x.dtype) for i in range(theta.shape[-1]))
    if valid is None:
        valid = torch.ones_like(x, dtype=torch.bool)
    m = x.masked_fill(~valid, -torch.inf).amax(-1, keepdim=True)
    distance = m - x
    s = B - S * torch.where(distance <= D, distance, D)  #          eq. 2, 3
    if second:
        S2, D2, _ = second
        s = s - S2 * torch.where(distance <= D2, distance, D2)
    s = s.masked_fill(~valid, 0)
    return s / s.sum(-1, keepdim=True)  #                           eq. 5


# --- the operators ------------------------------------------------------------------------------------------

torch.library.define(
    "hccs::softmax_logits",
    "(Tensor z, Tensor theta, Tensor scale, Tensor? valid, str mode) -> (Tensor, Tensor)",
)
torch.library.define(
    "hccs::softmax_logits_backward",
    "(Tensor g, Tensor x, Tensor theta, Tensor scale, Tensor? valid, bool learn) -> (Tensor, Tensor)",
)


def _forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(z, theta).forward(z, theta, scale, valid, Mode(mode))  # type: ignore[no-any-return]


@torch.library.register_fake("hccs::softmax_logits")
def _forward_shapes(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    return p, torch.empty(z.shape, dtype=torch.int16, device=z.device)


def _backward(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(g, theta).backward(g, x, theta, scale, valid, learn)  # type: ignore[no-any-return]


@torch.library.register_fake("hccs::softmax_logits_backward")
def _backward_shapes(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    learnt = theta.shape[-1] + 1
    rows = (*g.shape[:-1], learnt) if learn else (0, learnt)
    return torch.empty(g.shape, dtype=g.dtype, device=g.device), torch.empty(rows, device=g.device)


for _device in ("cpu", "cuda"):
    torch.library.impl("hccs::softmax_logits", _device)(_forward)
    torch.library.impl("hccs::softmax_logits_backward", _device)(_backward)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, theta, scale, valid, _ = inputs
    ctx.save_for_backward(output[1], theta, scale, valid)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, g: torch.Tensor, _: Any, backward: Any = None) -> tuple[Any, ...]:
    x, theta, scale, valid = ctx.saved_tensors
    _, wants_theta, wants_scale, _, _ = ctx.needs_input_grad
    backward = backward or torch.ops.hccs.softmax_logits_backward
    dz, rows = backward(g, x, theta, scale, valid, wants_theta or wants_scale)
    groups = rows.sum(-2) if x.ndim > 1 and rows.numel() else rows
    d_theta = groups[..., :-1].sum_to_size(theta.shape).to(theta.dtype) if wants_theta else None
    d_scale = groups[..., -1].sum_to_size(scale.shape).to(scale.dtype) if wants_scale else None
    return dz, d_theta, d_scale, None, None


torch.library.register_autograd("hccs::softmax_logits", _gradients, setup_context=_save)


class _Eager(torch.autograd.Function):
    """The same two kernels without the operator's dispatch, which costs more than a small layer's softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        z: torch.Tensor,
        theta: torch.Tensor,
        scale: torch.Tensor,
        valid: torch.Tensor | None,
        mode: Mode,
    ) -> torch.Tensor:
        p, x = _backend(z, theta).forward(z, theta, scale, valid, mode)
        ctx.save_for_backward(x, theta, scale, valid)
        return p  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return _gradients(ctx, g, None, _backend(g, ctx.saved_tensors[1]).backward)


def _backend(z: torch.Tensor, theta: torch.Tensor) -> Any:
    on_cpu = z.device.type == "cpu"
    plain = z.dtype == torch.float64 if on_cpu else theta.shape[-1] > ONE_LINE
    return plain_logits if plain else backend("float_logits", z.device.type)
