"""Forward and backward of `hccs_softmax` on CPU tensors by the native kernels, in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from hccs.backends.cpu import _native
from hccs.errors import DataError, ParameterError
from hccs.numbers.modes import INT16_MAX, Mode

_MODES = {Mode(name): number for number, name in enumerate(_native.MODES)}

# Below this many logits per thread, starting the thread costs more than it saves.
_LOGITS_PER_THREAD = 1 << 19


def forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only."""
    theta = integers(theta)
    require_columns(theta, z.shape[-1])
    logits = z.detach().to(torch.float32).contiguous()
    p, x = torch.empty_like(logits), torch.empty(z.shape, dtype=torch.int16)
    layout = _layout(logits, theta, scale, valid, mode)
    if not _run(True, logits, layout, x, p, None):
        raise not_finite()
    return p.to(z.dtype), x


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
    given = g.detach().to(torch.float32).contiguous()
    dz = torch.empty_like(given)
    rows = torch.empty((*g.shape[:-1], 4) if learn else (0, 4))
    layout = _layout(given, theta, scale, valid, Mode.I16_DIV)
    _run(False, given, layout, x.contiguous(), dz, rows if learn else None)
    return dz.to(g.dtype), rows


def _run(
    forward: bool,
    given: torch.Tensor,
    layout: tuple[Any, ...],
    x: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor | None,
) -> bool:
    heads, scales, groups, rows_per_group, mode, mask = layout
    return _native.logits(
        forward, given.numpy(), heads, scales, groups, rows_per_group, mode, mask, x.numpy(), out.numpy(),
        None if rows is None else rows.numpy(), _threads(given),
    )  # fmt: skip


def integers(theta: torch.Tensor) -> torch.Tensor:
    """theta as int32; floats, which are being learnt, are rounded."""
    return theta.detach().round().to(torch.int32) if theta.is_floating_point() else theta


def require_columns(theta: torch.Tensor, columns: int) -> None:
    """Refuse rows so long that Z could leave int16."""
    largest = int(theta[..., 0].max()) if theta.numel() else 0
    if columns * largest > INT16_MAX:
        raise ParameterError(
            f"columns * B <= {INT16_MAX}, so that the row sum fits int16",
            f"{columns} columns with B = {largest}",
            f"Recalibrate with n = {columns}, or shorten the sequence.",
        )


def not_finite() -> DataError:
    """The refusal of logits that are no numbers."""
    return DataError("finite logits", "NaN", "Look for an overflow in the layers before this attention.")


def _threads(logits: torch.Tensor) -> int:
    return max(1, min(torch.get_num_threads(), logits.numel() // _LOGITS_PER_THREAD))


def _layout(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[Any, ...]:
    """The native arguments between the input and the rounded logits."""
    heads = (
        scale.shape
        if theta.shape[:-1] == scale.shape
        else torch.broadcast_shapes(theta.shape[:-1], scale.shape)
    )
    groups = _groups(tuple(heads), tuple(z.shape[:-2]))
    packed = theta.to(torch.int32).expand(*heads, 3).contiguous().numpy()
    scales = scale.detach().to(torch.float32).expand(heads).contiguous().numpy()
    mask = None
    if valid is not None:
        full = valid.expand(z.shape)
        mask = (full if full.stride(-1) == 1 else full.contiguous()).numpy()
    return packed, scales, groups, z.shape[-2] if z.ndim > 1 else 1, _MODES[mode], mask


@functools.lru_cache(maxsize=256)
def _groups(heads: tuple[int, ...], lead: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """For each block of query rows, which head serves it."""
    numbers = np.arange(math.prod(heads), dtype=np.int32).reshape(heads)
    return np.ascontiguousarray(np.broadcast_to(numbers, lead)).reshape(-1)
