"""Real values as int8 steps, by the two rules of docs/spec.md, for arrays and tensors.

Logits are divided by their scale, q, k and v multiplied by a factor. Kernels that quantise on their way
repeat the rule they follow and name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ShapeError
from hccs.numbers.arrays import numbers
from hccs.ops import arguments
from hccs.ops.dispatch import backend

if TYPE_CHECKING:
    import torch

INT8_MIN, INT8_MAX = -128, 127


@overload
def quantise(z: torch.Tensor, scale: Any, valid: Any = ...) -> torch.Tensor: ...
@overload
def quantise(z: Any, scale: Any, valid: Any = ...) -> NDArray[np.int8]: ...
def quantise(z: Any, scale: Any, valid: Any = None) -> Any:
    """int8 logits clamp(round_half_even(z / scale), -128, 127); `scale` broadcasts against z.shape[:-2].

    Arrays divide in float64. Tensors divide in float32 by the scale in float32, as networks do, and float64
    tensors in float64. Positions that are not `valid`, as in `hccs.softmax`, may hold anything and become 0.

    >>> quantise(np.array([[0.24, 0.25, 0.35, -99.0]]), scale=0.1)
    array([[   2,    2,    3, -128]], dtype=int8)
    """
    if arguments.is_tensor(z):
        return _quantise_tensor(z, scale, valid)
    if isinstance(z, np.ma.MaskedArray):
        z, valid = arguments.unmasked("z", z, valid)
    z = numbers("z", z, "Pass real logits.")
    if valid is not None:
        z = np.where(arguments.as_mask(valid, z.shape, "z.shape"), z, z.dtype.type(0))
    if not np.isfinite(z).all():
        raise DataError(
            "finite logits",
            f"{np.count_nonzero(~np.isfinite(z))} of {z.size} NaN or infinite",
            "Pass `valid` for padding instead of adding -inf, and check the model for overflow.",
        )
    arguments.require_scale(scale)
    steps = np.asarray(scale, np.float64)
    _require_broadcast(z.shape, steps.shape)
    steps = steps[..., None, None] if steps.ndim else steps
    return np.clip(np.rint(z / steps), INT8_MIN, INT8_MAX).astype(np.int8)


def _quantise_tensor(z: torch.Tensor, scale: Any, valid: Any) -> torch.Tensor:
    import torch

    if not isinstance(scale, torch.Tensor):
        arguments.require_scale(scale)
        scale = torch.as_tensor(scale, dtype=torch.float32, device=z.device)
    if valid is not None:
        mask = torch.as_tensor(arguments.as_mask(valid, tuple(z.shape), "z.shape"), device=z.device)
        z = z.masked_fill(~mask, 0)
    _require_broadcast(z.shape, scale.shape)
    steps = divided(z, scale.to(torch.float32)).round_()
    if bool(steps.isnan().any()):
        raise arguments.not_finite()
    return steps.clamp_(INT8_MIN, INT8_MAX).to(torch.int8)


def _require_broadcast(logits: tuple[int, ...], scale: tuple[int, ...]) -> None:
    try:
        np.broadcast_shapes(logits[:-2], scale)
    except ValueError as error:
        raise ShapeError(
            f"scale to broadcast against z.shape[:-2] = {tuple(logits[:-2])}",
            f"shape {tuple(scale)}",
            "Give one value, or one per head.",
        ) from error


def divided(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """z / scale in float32, or in float64 for float64: logits in steps before they are rounded."""
    import torch

    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    return torch.div(wide, scale[..., None, None].to(wide.dtype))


def by_factor(x: Any, factor: Any) -> Any:
    """int8 clamp(round_half_even(x * factor), -128, 127) of x [batch, heads, n, d], one factor per head.

    The rule of q, k and v: one product in float32 with the factor 1 / scale rounded to float32.

    >>> by_factor(np.array([[[[0.25, -0.35, 99.0]]]], np.float32), np.array([10.0], np.float32))
    array([[[[  2,  -4, 127]]]], dtype=int8)
    """
    device = arguments.device_of(x)
    kernel = backend("quantise", device).by_factor
    if isinstance(x, np.ndarray):
        return kernel(x.astype(np.float32, copy=False), np.asarray(factor, np.float32))
    if device != "cpu":
        return kernel(x, factor)
    import torch

    return torch.from_numpy(kernel(x.detach().float().numpy(), factor.detach().float().numpy()))


def by_factors(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], end: torch.Tensor | None = None
) -> None:
    """`by_factor` of up to three tensors (x, factors, out) of one batch and d, into int8 ones.

    On a GPU this is one launch, which can write the second and third before an `end` that only the GPU knows.
    """
    device = arguments.device_of(parts[0][0])
    if device != "cpu":
        backend("quantise", device).by_factors(parts, end)
        return
    for x, factor, out in parts:
        out.copy_(by_factor(x, factor))
