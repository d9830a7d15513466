"""`hccs_softmax` on float logits: quantise, the exact integers forward, straight-through backward.

Two operators are registered with `torch.library`, so that the function survives `torch.compile` and
`torch.export`: `hccs::softmax_logits` and its backward. On CPU the integers come from the native kernels, on
CUDA each operator is one Triton kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from hccs.backends.cpu import float_logits as on_cpu
from hccs.errors import DtypeError, ShapeError
from hccs.nn import plain_logits
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops.softmax_tensor import require_triton

__all__ = ["hccs_softmax", "quantise", "surrogate"]


def hccs_softmax(
    z: torch.Tensor,
    theta: HeadParams | torch.Tensor,
    scale: float | torch.Tensor,
    mode: Mode | str = "i16_div",
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """HCCS probabilities p_hat / T of float logits `z` [..., q, k], in z's dtype and differentiable.

    `theta` is `HeadParams` or a tensor [..., 3] of (B, S, D); its shape and that of `scale` broadcast against
    z.shape[:-2]. A float tensor theta is rounded, and it and `scale` get gradients if they ask for them.
    `valid` is a boolean mask that broadcasts to z.shape; other columns get exactly zero.

    >>> z = torch.tensor([[1.0, 0.3, -0.2, -9.0]], requires_grad=True)
    >>> p = hccs_softmax(z, HeadParams(B=444, S=11, D=40), scale=0.1, mode="u8_div")
    >>> (p * 255).round().int().tolist()
    [[100, 83, 70, 0]]
    """
    if not z.is_floating_point():
        raise DtypeError("z to be float logits", f"dtype {z.dtype}", "For int8 logits use hccs.softmax.")
    if z.ndim == 0:
        raise ShapeError(
            "z with at least one dimension [..., q, k]", "a scalar", "Pass whole rows of logits."
        )
    if isinstance(theta, HeadParams):
        theta.require_columns(z.shape[-1])
        theta = torch.tensor(theta.packed, device=z.device)
    if not isinstance(scale, torch.Tensor):
        scale = torch.tensor(scale, dtype=torch.float32, device=z.device)
    lead = z.shape[:-2]
    for name, shape in (("theta", theta.shape[:-1]), ("scale", scale.shape)):
        if len(shape) > len(lead) or any(
            a not in (1, b) for a, b in zip(shape[::-1], lead[::-1], strict=False)
        ):
            raise ShapeError(
                f"{name}'s shape to broadcast against z.shape[:-2] = {tuple(lead)}",
                f"shape {tuple(shape)}",
                "For logits [batch, heads, q, k] give one value per head: shape [heads].",
            )
    if valid is not None and valid.dtype != torch.bool:
        raise DtypeError(
            "valid to be a boolean mask, True = attend",
            f"dtype {valid.dtype}",
            "An additive float mask becomes booleans by comparing it with 0.",
        )
    if torch.compiler.is_compiling():
        p: torch.Tensor = torch.ops.hccs.softmax_logits(z, theta, scale, valid, Mode(mode).value)[0]
    else:
        p = _Eager.apply(z, theta, scale, valid, Mode(mode))
    return p


def quantise(z: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """int8 logits clamp(round_half_even(z / scale), -128, 127); `scale` broadcasts against z.shape[:-2].

    >>> quantise(torch.tensor([[0.25, -0.35, 99.0]]), 0.1).tolist()
    [[2, -4, 127]]
    """
    scale = torch.as_tensor(scale, dtype=torch.float32, device=z.device)
    return plain_logits.rounded(z, scale).clamp_(plain_logits.INT8_MIN, plain_logits.INT8_MAX).to(torch.int8)


def surrogate(x: torch.Tensor, theta: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The real-valued function whose gradient stands in for the integers': p = s / Z on real x [..., q, k].

    Plain differentiable torch, written to be read: the fast backward passes are held against its autograd.
    """
    B, S, D = (theta[..., i, None, None].to(x.dtype) for i in range(3))
    if valid is None:
        valid = torch.ones_like(x, dtype=torch.bool)
    m = x.masked_fill(~valid, -torch.inf).amax(-1, keepdim=True)
    distance = m - x
    delta = torch.where(distance <= D, distance, D)  #  eq. 2
    s = (B - S * delta).masked_fill(~valid, 0)  #       eq. 3
    return s / s.sum(-1, keepdim=True)  #               eq. 5


# --- the operators ------------------------------------------------------------------------------------------

torch.library.define(
    "hccs::softmax_logits",
    "(Tensor z, Tensor theta, Tensor scale, Tensor? valid, str mode) -> (Tensor, Tensor)",
)
torch.library.define(
    "hccs::softmax_logits_backward",
    "(Tensor g, Tensor x, Tensor theta, Tensor scale, Tensor? valid, bool learn) -> (Tensor, Tensor)",
)


@torch.library.impl("hccs::softmax_logits", "cpu")
def _forward_cpu(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(z).forward(z, theta, scale, valid, Mode(mode))  # type: ignore[no-any-return]


@torch.library.impl("hccs::softmax_logits", "cuda")
def _forward_cuda(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(z).forward(z, theta, scale, valid, Mode(mode))  # type: ignore[no-any-return]


@torch.library.register_fake("hccs::softmax_logits")
def _forward_shapes(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(z.shape, dtype=z.dtype, device=z.device), torch.empty(
        z.shape, dtype=torch.int16, device=z.device
    )


@torch.library.impl("hccs::softmax_logits_backward", "cpu")
def _backward_cpu(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(g).backward(g, x, theta, scale, valid, learn)  # type: ignore[no-any-return]


@torch.library.impl("hccs::softmax_logits_backward", "cuda")
def _backward_cuda(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backend(g).backward(g, x, theta, scale, valid, learn)  # type: ignore[no-any-return]


@torch.library.register_fake("hccs::softmax_logits_backward")
def _backward_shapes(
    g: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    learn: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (*g.shape[:-1], 4) if learn else (0, 4)
    return torch.empty(g.shape, dtype=g.dtype, device=g.device), torch.empty(rows, device=g.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, theta, scale, valid, _ = inputs
    ctx.save_for_backward(output[1], theta, scale, valid)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, g: torch.Tensor, _: Any) -> tuple[Any, ...]:
    x, theta, scale, valid = ctx.saved_tensors
    _, wants_theta, wants_scale, _, _ = ctx.needs_input_grad
    dz, rows = torch.ops.hccs.softmax_logits_backward(g, x, theta, scale, valid, wants_theta or wants_scale)
    return dz, *_parameter_gradients(rows, x, theta, scale, wants_theta, wants_scale), None, None


def _parameter_gradients(
    rows: torch.Tensor,
    x: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    wants_theta: bool,
    wants_scale: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of every row's (B, S, D, scale), summed over the rows each parameter serves."""
    groups = rows.sum(-2) if x.ndim > 1 and rows.numel() else rows
    d_theta = groups[..., :3].sum_to_size(theta.shape).to(theta.dtype) if wants_theta else None
    d_scale = groups[..., 3].sum_to_size(scale.shape).to(scale.dtype) if wants_scale else None
    return d_theta, d_scale


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
        p, x = _backend(z).forward(z, theta, scale, valid, mode)
        ctx.save_for_backward(x, theta, scale, valid)
        return p  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, theta, scale, valid = ctx.saved_tensors
        _, wants_theta, wants_scale, _, _ = ctx.needs_input_grad
        dz, rows = _backend(g).backward(g, x, theta, scale, valid, wants_theta or wants_scale)
        return dz, *_parameter_gradients(rows, x, theta, scale, wants_theta, wants_scale), None, None


def _backend(z: torch.Tensor) -> Any:
    if z.device.type == "cuda":
        return require_triton("float_logits")
    return plain_logits if z.dtype == torch.float64 else on_cpu
