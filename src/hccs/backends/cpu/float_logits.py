"""Forward and backward of `hccs_softmax` on CPU tensors by the native kernels, in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from hccs.backends.cpu import _native
from hccs.backends.cpu.codes import MODES
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops.arguments import as_mask, heads_of, not_finite, require_scale

# Below this many logits per thread, starting the thread costs more than it saves.
_LOGITS_PER_THREAD = 1 << 19


def forward(
    z: torch.Tensor, theta: torch.Tensor, scale: torch.Tensor, valid: torch.Tensor | None, mode: Mode
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in z's dtype and the rounded logits as int16, clamped to that width only."""
    logits = z.detach().to(torch.float32).contiguous()
    p, x = torch.empty_like(logits), torch.empty(z.shape, dtype=torch.int16)
    if not _run(True, logits, theta, scale, valid, mode, x, p, None):
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
    """dL/dz in g's dtype and, when learning, dL/d(theta, scale) of every row [..., q, 4], of two lines 7."""
    given = g.detach().to(torch.float32).contiguous()
    dz = torch.empty_like(given)
    learnt = theta.shape[-1] + 1
    rows = torch.empty((*g.shape[:-1], learnt) if learn else (0, learnt))
    _run(False, given, theta, scale, valid, Mode.I16_DIV, x.contiguous(), dz, rows if learn else None)
    return dz.to(g.dtype), rows


def _run(
    forward: bool,
    given: torch.Tensor,
    theta: torch.Tensor,
    scale: torch.Tensor,
    valid: torch.Tensor | None,
    mode: Mode,
    x: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor | None,
) -> bool:
    shape = tuple(given.shape)
    heads = heads_of(as_array(theta), shape[-1])
    steps = as_array(scale.to(torch.float32))
    packed, scales, groups = _layout(heads, steps.tobytes(), steps.shape, shape[:-2])
    mask = None
    if valid is not None:
        full = as_mask(valid, shape, "z.shape")
        mask = (full if full.stride(-1) == 1 else full.contiguous()).numpy()
    return _native.logits(
        forward, given.numpy(), packed, scales, groups, shape[-2] if len(shape) > 1 else 1, MODES[mode],
        mask, x.numpy(), out.numpy(), None if rows is None else rows.numpy(), _threads(given),
    )  # fmt: skip


def as_array(x: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """A tensor's values; halves, which NumPy has not both of, in float32."""
    if x.is_floating_point():
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    values: np.ndarray[Any, np.dtype[Any]] = x.detach().numpy()
    return values


def _threads(logits: torch.Tensor) -> int:
    return max(1, min(torch.get_num_threads(), logits.numel() // _LOGITS_PER_THREAD))


@functools.lru_cache(maxsize=256)
def _layout(
    heads: HeadParams, steps: bytes, shape: tuple[int, ...], lead: tuple[int, ...]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Parameters and scale of every head, and for each block of query rows, which head serves it.

    Kept: they are the same in every call but while they are being learnt.
    """
    scales = np.frombuffer(steps, np.float32).reshape(shape)
    require_scale(scales)
    common = np.broadcast_shapes(heads.shape, shape)
    numbers = np.arange(math.prod(common), dtype=np.int32).reshape(common)
    return (
        np.ascontiguousarray(np.broadcast_to(heads.packed, (*common, heads.packed.shape[-1]))),
        np.ascontiguousarray(np.broadcast_to(scales, common)),
        np.ascontiguousarray(np.broadcast_to(numbers, lead)).reshape(-1),
    )
