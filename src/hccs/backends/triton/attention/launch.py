"""Integer attention on CUDA tensors: which kernel runs, and its launch."""

from __future__ import annotations

from typing import Any

import torch

from hccs.backends.triton.attention.mask_bits import packed
from hccs.backends.triton.attention.plans import plan_for
from hccs.backends.triton.attention.starting import Again
from hccs.backends.triton.attention.tiles import Tile
from hccs.backends.triton.codes import COMMON_MASK
from hccs.backends.triton.devices import INTERPRETED, made_current, multiprocessors
from hccs.backends.triton.faults import word
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

# Heads per multiprocessor from which on the kernel takes longer than its launch, which describing tiles makes
# longer still.
_MANY_HEADS = 64

_MOST_KNOWN = 512
_known: dict[tuple[Any, ...], tuple[Again, torch.Tensor, HeadParams, Requant]] = {}


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
    tile: Tile | None = None,
) -> Any:
    """The named output of int8 tensors [..., n, d]; lengths outside the row are brought inside and told.

    `tile` overrides the table. A GPU has its own number of threads: `threads` is not looked at.
    """
    faults = word(q.device)
    result, Z = _results(q, out)
    if result.numel():
        asked = _asked(q, k, v, theta, requant, valid, causal, mode, out) if tile is None else None
        lead, nk = q.shape[:-2], k.shape[-2]
        logits = torch.Size((*lead, q.shape[-2], nk))
        q, k, v = _by_head(q), _by_head(k), _by_head(v)
        with made_current(q.device):
            chosen, places, kind = _selection(masking, valid, logits)
            plan = plan_for(
                tuple(q.shape), tuple(k.shape[1:3]), tuple(lead), theta, requant, q.device, kind,
                kind == LENGTHS and places[3] == 0, bool(causal), mode, result.dtype,
                tile is None and _are_many(q, k, v), q.shape[-2] == 1 and _are_words(q, k, v),
                k.stride(-2) == v.stride(-2) == q.shape[-1], _are_aligned(q, k, v), tile,
            )  # fmt: skip
            copies.held(plan.table)
            again = plan.launch(q, k, v, chosen, faults if kind == LENGTHS else None, places, result, Z)
        if asked is not None and again is not None and q.ndim == len(lead) + 2:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            if kind not in (NO_MASK, LENGTHS):
                again = _with_bits(again, masking, logits)
            # The parameters are kept with what knows them by their identity.
            _known[asked] = again, plan.table, theta, requant
    return result if Z is None else (result, Z)


def again(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, theta: HeadParams, requant: Requant,
    valid: Any, causal: Any, mode: Any, out: Any,
) -> Any:  # fmt: skip
    """The result of a call that was made before, on other data; None where there was none.

    What shapes and parameters decide was checked then, and the launch is known: the host does little else
    than hand over addresses. Parameters are known by their identity, tensors by their layout.
    """
    if valid is not None and not (type(valid) is torch.Tensor and valid.is_cuda):
        # On the host. What is kept was checked with as many keys.
        if type(k) is not torch.Tensor or k.ndim < 2:
            return None
        valid = copies.kept(valid, q.device, k.shape[-2])
        if valid is None:
            return None
    asked = _asked(q, k, v, theta, requant, valid, causal, mode, out)
    found = None if asked is None else _known.get(asked)
    if found is None or q.device.index != torch.cuda.current_device():
        return None
    faults = word(q.device)
    result, Z = _results(q, out)
    copies.held(found[1])
    found[0](q, k, v, valid, None if valid is None else faults, result, Z)
    return result if Z is None else (result, Z)


def _results(q: torch.Tensor, out: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    # Quicker than by shape and device.
    result = torch.empty_like(q, dtype=_DTYPES[out], memory_format=torch.contiguous_format)
    return result, torch.empty(q.shape[:-1], dtype=torch.int32, device=q.device) if out == "pair" else None


def _asked(
    q: Any, k: Any, v: Any, theta: Any, requant: Any, valid: Any, causal: Any, mode: Any, out: Any
) -> tuple[Any, ...] | None:
    """What a call is known by; None for what is not remembered."""
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
    return (
        id(theta), id(requant), causal, mode, out, q.device, lengths,
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
        q.data_ptr() % 16, k.data_ptr() % 16, v.data_ptr() % 16,
    )  # fmt: skip


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """As [batch, heads, n, d] with contiguous rows; a copy only where strides cannot say it."""
    if x.ndim != 4:
        x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 4 else x[(None,) * (4 - x.ndim)]
    # The kernels step inside a head in 32 bits.
    far = x.stride(-2) * x.shape[-2] >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


def _selection(
    masking: int, valid: torch.Tensor | None, shape: torch.Size
) -> tuple[torch.Tensor | None, list[int], int]:
    """`valid` as the kernels take it, with (n1, s0, s1, s2) to find a row in it, and its kind.

    Lengths stay as they are; masks become bits.
    """
    if valid is None or shape[-1] == 0:
        return None, [1, 0, 0, 0], NO_MASK
    if masking == LENGTHS:
        full, places = selection(masking, valid, shape)
        return full, [places[0], *places[2:5]], LENGTHS
    words = packed(valid, shape[-1])
    full, places = rows_in(words.expand(*shape[:-1], words.shape[-1]))
    return full, [places[0], *places[2:5]], MASK if full.stride(-2) else COMMON_MASK.value


def _with_bits(again: Again, masking: int, logits: torch.Size) -> Again:
    """The launch that is known, on the bits of another mask like the first."""

    def packed_again(q: Any, k: Any, v: Any, valid: Any, faults: Any, result: Any, Z: Any) -> None:
        again(q, k, v, _selection(masking, valid, logits)[0], None, result, Z)

    return packed_again


def _are_words(*parts: torch.Tensor) -> bool:
    """Whether every row starts at a whole word."""
    return all(x.data_ptr() % 4 == 0 and all(step % 4 == 0 for step in x.stride()[:-1]) for x in parts)


def _are_aligned(*parts: torch.Tensor) -> bool:
    """Whether every row starts at a whole 16 bytes."""
    return all(x.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in x.stride()[:-1]) for x in parts)


def _are_many(*parts: torch.Tensor) -> bool:
    """Whether there are heads enough to load ahead, all of them where the copy engine can read them."""
    batches, heads, _, d = parts[0].shape
    if d not in (32, 64) or batches * heads < _MANY_HEADS * multiprocessors(parts[0].device):
        return False
    return all(x.data_ptr() % 16 == 0 and all(step and step % 16 == 0 for step in _steps(x)) for x in parts)


def _steps(x: torch.Tensor) -> list[int]:
    """Strides of all but the columns; that of a single row, head or batch, which is arbitrary, as 16."""
    return [step if size > 1 else 16 for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)]
