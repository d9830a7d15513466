"""`attention` on torch tensors: CPU tensors share memory with the native kernels, CUDA tensors go to Triton.

Imported only once a torch tensor arrives, so that the core never needs torch.
"""

from __future__ import annotations

from typing import Any

import torch

from hccs.errors import DtypeError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops import attention as door
from hccs.ops.softmax_tensor import broadcasts, chosen, made_current, require_triton

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def attention(
    q: torch.Tensor,
    k: Any,
    v: Any,
    theta: HeadParams,
    requant: Requant,
    valid: Any,
    causal: bool,
    mode: Mode | str | None,
    out: str,
    threads: int | None,
) -> Any:
    """The result of `hccs.attention` as tensors on q's device."""
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, torch.Tensor):
            raise DtypeError(
                f"{name} to be a torch tensor like q", type(given).__name__, "Use torch.as_tensor."
            )
        if given.dtype != torch.int8:
            raise door.not_int8(name, given.dtype)
        if given.device != q.device:
            raise DtypeError(
                f"{name} on q's device {q.device}", f"device {given.device}", "Move it with .to()."
            )
    door.check_arguments(tuple(q.shape), tuple(k.shape), tuple(v.shape), theta, requant, causal, out)
    checked = door.check_mode(mode)
    if q.device.type == "cpu":
        return _on_cpu(q, k, v, theta, requant, valid, causal, checked, out, threads)
    if q.device.type == "cuda":
        return _on_cuda(q, k, v, theta, requant, valid, causal, checked, out)
    raise DtypeError("q, k and v on the CPU or on CUDA", f"device {q.device}", "Move them with .cpu().")


def _on_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: HeadParams,
    requant: Requant,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    out: str,
    threads: int | None,
) -> Any:
    if isinstance(valid, torch.Tensor):
        valid = valid.detach().cpu().numpy()
    result = door.attention(
        q.detach().numpy(),
        k.detach().numpy(),
        v.detach().numpy(),
        theta,
        requant,
        valid=valid,
        causal=causal,
        mode=mode,
        out="float32" if out in _HALVES else out,
        threads=threads,
    )
    if out == "pair":
        return tuple(torch.from_numpy(part) for part in result)
    tensor = torch.from_numpy(result)
    return tensor.to(_HALVES[out]) if out in _HALVES else tensor


def _on_cuda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: HeadParams,
    requant: Requant,
    valid: Any,
    causal: bool,
    mode: Mode | None,
    out: str,
) -> Any:
    cuda = require_triton("attention.launch")
    for name, shape in (("theta", theta.shape), ("requant", requant.shape)):
        if not broadcasts(shape, q.shape[:-2]):
            raise ShapeError(
                f"{name}'s shape to broadcast against q.shape[:-2] = {tuple(q.shape[:-2])}",
                f"{name} of shape {shape}",
                "For q [batch, heads, nq, d] give one value per head: shape [heads].",
            )
    if valid is not None:
        logits = torch.Size((*q.shape[:-1], k.shape[-2]))
        valid = chosen(torch.as_tensor(valid, device=q.device), logits)
    with made_current(q.device):
        return cuda.attention(q, k, v, theta, requant, valid=valid, causal=causal, mode=mode, out=out)
