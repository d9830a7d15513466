"""Integer attention on CUDA tensors; calls like an earlier one skip its checks and its plan."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any

import torch

from hccs.backends.triton.attention.launch_plan import Relaunch
from hccs.backends.triton.attention.plans import Request, plan_for
from hccs.backends.triton.attention.steps import packed
from hccs.backends.triton.attention.tuning import Tuning
from hccs.backends.triton.codes import COMMON_MASK
from hccs.backends.triton.devices import INTERPRETED, made_current
from hccs.backends.triton.faults import fault_bytes
from hccs.backends.triton.softmax import rows_in, selection
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops import copies
from hccs.ops.arguments import LENGTHS, MASK, NO_MASK

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "pair": torch.int32,
}

_LEAST_CLASS = 64

BITS = "hccs_bits"
"""The attribute of a mask, made for many calls and written into by torch alone, where its bits are kept."""

Known = tuple[Relaunch, torch.Tensor, HeadParams, Requant, int]
"""A launch, the table and parameters that it reads, and the most keys of rows that it takes."""

_MOST_KNOWN = 512
_known: dict[tuple[Any, ...], Known] = {}
"""By what a call is known by."""


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: HeadParams,
    requant: Requant,
    masking: int = NO_MASK,
    valid: torch.Tensor | None = None,
    causal: bool = False,
    mode: Mode | None = None,
    out: str = "float32",
    threads: int | None = None,
    *,
    tuning: Tuning | None = None,
) -> Any:
    """The named output of int8 tensors [..., n, d]; lengths outside the row are clamped and reported.

    `tuning` overrides the table. A GPU has its own number of threads: `threads` is ignored.
    """
    faults = fault_bytes(q.device)
    result, Z = results(q, out)
    if result.numel():
        asked = _asked(q, k, v, theta, requant, valid, causal, mode, out) if tuning is None else None
        lead, nk = q.shape[:-2], k.shape[-2]
        logits = torch.Size((*lead, q.shape[-2], nk))
        given, (q, k, v) = (q, k, v), (_by_head(q), _by_head(k), _by_head(v))
        growing = _is_step(q, k)
        with made_current(q.device):
            chosen, places, kind = _selection(masking, valid, logits, growing)
            request = Request(
                tuple(q.shape), k.shape[1], length_class(nk) if growing else nk, tuple(lead), theta, requant,
                q.device, kind, kind == LENGTHS and places[3] == 0, bool(causal) and q.shape[-2] > 1, mode,
                result.dtype, q.shape[-2] == 1 and _step_by(4, q, k, v),
                k.stride(-2) == v.stride(-2) == q.shape[-1], _step_by(16, q, k, v), growing, tuning,
            )  # fmt: skip
            plan = plan_for(request)
            copies.held(plan.table)
            relaunch = plan.launch(q, k, v, chosen, faults if kind == LENGTHS else None, places, result, Z)
        as_given = all(x is y for x, y in zip((q, k, v), given, strict=True))
        if asked is not None and relaunch is not None and as_given:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            if kind not in (NO_MASK, LENGTHS):
                relaunch = _with_bits(relaunch, masking, growing)
            # The parameters are kept: the key knows them by their identity.
            _known[asked] = relaunch, plan.table, theta, requant, min(request.keys, theta.max_columns)
    return result if Z is None else (result, Z)


def again(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, theta: HeadParams, requant: Requant,
    valid: Any, causal: Any, mode: Any, out: Any,
) -> Any:  # fmt: skip
    """The result of a call that was made before, on other data; None where there was none.

    The first call checked what shapes and parameters decide, and its launch is known: the host does little
    but pass addresses. Parameters are known by their identity, tensors by their layout. A step of generation
    is known by a class of lengths, so that a growing cache meets few unknown calls.
    """
    if valid is not None and not (type(valid) is torch.Tensor and valid.is_cuda):
        # On the host; the copy was checked with the same number of keys.
        if type(k) is not torch.Tensor or k.ndim < 2:
            return None
        valid = copies.kept(valid, q.device, k.shape[-2])
        if valid is None:
            return None
    found = known(q, k, v, theta, requant, valid, causal, mode, out)
    if found is None or k.shape[-2] > found[4] or q.device.index != torch.cuda.current_device():
        return None
    faults = fault_bytes(q.device)
    result, Z = results(q, out)
    copies.held(found[1])
    found[0](q, k, v, valid, None if valid is None else faults, result, Z)
    return result if Z is None else (result, Z)


def known(*call: Any) -> Known | None:
    """What is known of a call with the arguments of `_asked`."""
    asked = _asked(*call)
    return None if asked is None else _known.get(asked)


def results(q: torch.Tensor, out: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Room for outputs, and for Z where it is one."""
    # Quicker than by shape and device.
    result = torch.empty_like(q, dtype=_DTYPES[out], memory_format=torch.contiguous_format)
    return result, torch.empty(q.shape[:-1], dtype=torch.int32, device=q.device) if out == "pair" else None


def _asked(
    q: Any, k: Any, v: Any, theta: Any, requant: Any, valid: Any, causal: Any, mode: Any, out: Any
) -> tuple[Any, ...] | None:
    """The key of a call among those that are known; None for a call that is not remembered."""
    plain = type(q) is type(k) is type(v) is torch.Tensor and type(out) is str
    if not plain or INTERPRETED or type(causal) is not bool or not (mode is None or isinstance(mode, str)):
        return None
    if not (q.dtype is k.dtype is v.dtype is torch.int8) or not q.device == k.device == v.device:
        return None
    lengths: Any = None
    if valid is not None:
        if type(valid) is not torch.Tensor or valid.device != q.device:
            return None
        lengths = valid.dtype, valid.shape, valid.stride(), valid.data_ptr() % 16
    caches: tuple[Any, ...] = k.shape, v.shape, k.stride(), v.stride()
    if q.ndim == k.ndim == 4 and k.shape == v.shape and _is_step(q, k):
        if valid is not None and valid.dtype is torch.bool:
            if valid.shape[-1:] != k.shape[-2:-1]:
                return None
            lengths = valid.dtype, valid.shape[:-1]  # what becomes bits may lie as it likes
        most, of_k, of_v = length_class(k.shape[-2]), k.stride(), v.stride()
        if max(of_k[2], of_v[2]) * most >= 2**31:
            return None
        caches = k.shape[:2], most, k.shape[3], _step_classes(of_k), _step_classes(of_v)
    return (
        id(theta), id(requant), causal, mode, out, q.device, lengths, q.shape, q.stride(), *caches,
        q.data_ptr() % 16, k.data_ptr() % 16, v.data_ptr() % 16,
    )  # fmt: skip


def _is_step(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether this is a step of generation: one query, whose next call sees one key more."""
    return q.shape[-2] == 1 and k.shape[-2] > 0


def length_class(keys: int) -> int:
    """The most keys of the rows that share a plan with rows of this many."""
    return max(1 << (keys - 1).bit_length(), _LEAST_CLASS)


@lru_cache(maxsize=256)
def _step_classes(steps: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a cache; of the first two, in bytes or words of four, what Triton compiles for."""

    def of(step: int) -> int:
        return gcd(step, 64) if step % 4 == 0 and 4 < step < 2**31 else step

    return of(steps[0]), of(steps[1]), *steps[2:]


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """As [batch, heads, n, d] with contiguous rows; a copy only where strides cannot say it."""
    if x.ndim != 4:
        x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # The kernels count the bytes of a head in 32 bits.
    far = x.stride(-2) * x.shape[-2] >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


def _selection(
    masking: int, valid: torch.Tensor | None, shape: torch.Size, growing: bool
) -> tuple[torch.Tensor | None, list[int], int]:
    """`valid` as the kernels take it, with (n1, s0, s1, s2) to find a row in it, and its kind.

    Lengths stay as they are; masks become bits, in rows that are `growing` as wide as their class.
    """
    if valid is None or shape[-1] == 0:
        return None, [1, 0, 0, 0], NO_MASK
    if masking == LENGTHS:
        full, places = selection(masking, valid, shape)
        return full, [places[0], *places[2:5]], LENGTHS
    words = _bits(valid, shape[-1], length_class(shape[-1]) if growing else shape[-1])
    full, places = rows_in(words.expand(*shape[:-1], words.shape[-1]))
    return full, [places[0], *places[2:5]], MASK if full.stride(-2) else COMMON_MASK.value


def _bits(mask: torch.Tensor, keys: int, most: int) -> torch.Tensor:
    """`packed`; once for all layers of a model, whose mask function marks what it makes for them."""
    known = getattr(mask, BITS, None)
    if known is None or not mask.is_cuda or torch.cuda.is_current_stream_capturing():
        return packed(mask, keys, most)
    asked = keys, most, mask._version, torch.cuda.current_stream().cuda_stream
    if asked not in known:
        known.clear()
        known[asked] = packed(mask, keys, most)
    words: torch.Tensor = known[asked]
    return words


def _with_bits(relaunch: Relaunch, masking: int, growing: bool) -> Relaunch:
    """The known launch, on the bits of another mask like the first."""

    def with_bits(q: Any, k: Any, v: Any, valid: Any, faults: Any, result: Any, Z: Any) -> None:
        logits = torch.Size((*q.shape[:-1], k.shape[-2]))
        relaunch(q, k, v, _selection(masking, valid, logits, growing)[0], None, result, Z)

    return with_bits


def _step_by(size: int, *parts: torch.Tensor) -> bool:
    """Whether every row starts at a multiple of so many bytes."""
    return all(x.data_ptr() % size == 0 and all(step % size == 0 for step in x.stride()[:-1]) for x in parts)
