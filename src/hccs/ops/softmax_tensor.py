"""`softmax` on torch tensors: CPU tensors share memory with the native kernels, CUDA tensors go to Triton.

Imported only once a torch tensor arrives, so that the core never needs torch.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hccs.errors import DtypeError, MaskError, MissingExtraError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import softmax as door


def softmax(
    x: torch.Tensor, theta: HeadParams, mode: Mode | str, valid: Any, out: Any, threads: int | None
) -> torch.Tensor:
    """The integers of `hccs.softmax` as a tensor on x's device."""
    if x.dtype != torch.int8:
        raise DtypeError(
            "x of dtype torch.int8",
            f"dtype {x.dtype}",
            "For float logits use hccs.nn.functional.hccs_softmax.",
        )
    if out is not None and not isinstance(out, torch.Tensor):
        raise DtypeError(
            "out to be a torch tensor like x", type(out).__name__, "Leave it out to get a new one."
        )
    if x.device.type == "cpu":
        return _on_cpu(x, theta, mode, valid, out, threads)
    if x.device.type == "cuda":
        return _on_cuda(x, theta, Mode(mode), valid, out)
    raise DtypeError("x on the CPU or on CUDA", f"device {x.device}", "Move it with x.cpu().")


def _on_cpu(
    x: torch.Tensor, theta: HeadParams, mode: Mode | str, valid: Any, out: Any, threads: int | None
) -> Any:
    if isinstance(valid, torch.Tensor):
        valid = valid.detach().cpu().numpy()
    target = None if out is None else out.detach().numpy()
    result = door.softmax(x.detach().numpy(), theta, mode, valid, out=target, threads=threads)
    return torch.from_numpy(result) if out is None else out


def _on_cuda(
    x: torch.Tensor, theta: HeadParams, mode: Mode, valid: Any, out: torch.Tensor | None
) -> torch.Tensor:
    triton = require_triton()
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    if x.ndim == 0:
        raise ShapeError(
            "x with at least one dimension [..., q, k]", "a scalar", "Pass whole rows of logits."
        )
    theta.require_columns(x.shape[-1])
    lead = x.shape[:-2]
    if not broadcasts(theta.shape, lead):
        raise ShapeError(
            f"theta's shape to broadcast against x.shape[:-2] = {tuple(lead)}",
            f"theta of shape {theta.shape}",
            "For logits [batch, heads, q, k] give one triple per head: shape [heads].",
        )
    selected = None if valid is None else chosen(torch.as_tensor(valid, device=x.device), x.shape)
    dtype = torch.uint8 if mode.is_u8 else torch.int16
    if out is None:
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
    elif out.dtype != dtype or out.shape != x.shape or out.device != x.device or not out.is_contiguous():
        raise ShapeError(
            f"out contiguous, of dtype {dtype}, on {x.device} and of x's shape {tuple(x.shape)}",
            f"dtype {out.dtype}, shape {tuple(out.shape)}, device {out.device}",
            "Make it with torch.empty(x.shape, dtype=..., device=x.device).",
        )
    if x.numel():
        packed = torch.tensor(theta.packed, device=x.device)
        with made_current(x.device):
            triton.softmax(x.contiguous(), packed, mode, selected, out)
    return out


def require_triton(module: str = "softmax") -> Any:
    """A module of `hccs.backends.triton`, or what to install."""
    try:
        return importlib.import_module(f"hccs.backends.triton.{module}")
    except ImportError as error:
        raise MissingExtraError(
            "Triton for tensors on CUDA",
            f"no module {error.name}",
            "pip install -U triton (3.4 or later), or move the tensors to the CPU.",
        ) from error


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device; changing to it takes time even where nothing changes."""
    return nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def broadcasts(shape: tuple[int, ...], target: torch.Size) -> bool:
    """Whether a per-head shape of no more dimensions broadcasts to the target."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def chosen(valid: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`valid` for logits of this shape, checked: a boolean mask, or int32 lengths."""
    if valid.dtype == torch.bool:
        target, what = shape, "a mask that broadcasts to x.shape"
    elif valid.dtype.is_floating_point or valid.dtype.is_complex:
        raise DtypeError(
            "valid to be booleans or integer lengths",
            f"dtype {valid.dtype}",
            "An additive float mask becomes booleans by comparing it with 0.",
        )
    else:
        target, what = shape[:-1], "row lengths that broadcast to x.shape[:-1]"
        if valid.numel() and not bool(((valid >= 0) & (valid <= shape[-1])).all()):
            raise MaskError(
                f"row lengths between 0 and {shape[-1]} columns",
                f"lengths from {int(valid.min())} to {int(valid.max())}",
                "A length counts the valid columns from the row's start.",
            )
        valid = valid.to(torch.int32)
    if not broadcasts(tuple(valid.shape), target):
        raise MaskError(
            f"{what} = {tuple(target)}",
            f"shape {tuple(valid.shape)}",
            "For [batch, heads, q, k] a padding mask has shape [batch, 1, 1, k], its lengths [batch, 1, 1].",
        )
    return valid
