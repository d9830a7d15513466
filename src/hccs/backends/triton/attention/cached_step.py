"""A step of generation over a cache that was made before: found, and launched, with one look at its tensors.

It quantises q, and the new k and v into the last rows of the cache, and attends. The two calls that do this
know their launches too, but each looks at its tensors by itself, and the host would take twice as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hccs.backends.triton import quantise
from hccs.backends.triton.attention import launch
from hccs.backends.triton.faults import fault_bytes
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops import copies

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Step(NamedTuple):
    quantise: quantise.Start
    attention: launch.Known
    factors: Tensors
    """Kept, as attention keeps its parameters: the step is known by their identity."""
    addresses: tuple[int, ...]
    """Of the factors."""


_MOST_KNOWN = 512
_known: dict[tuple[Any, ...], _Step] = {}


def step_again(
    new: Tensors, factors: Tensors, k: torch.Tensor, v: torch.Tensor, theta: HeadParams, requant: Requant,
    mode: Mode | None, out: str,
) -> torch.Tensor | None:  # fmt: skip
    """Attention of float q [batch, heads, 1, d] over int8 k and v; None where none like it was made before.

    `new` are q and what becomes the last rows of k and v; `factors` make them int8.
    """
    query, key, value = new
    shape, of_query, of_key, device = k.shape, query.shape, key.shape, query.device
    of_k, of_v = k.stride(), v.stride()
    k_at, v_at = k.data_ptr(), v.data_ptr()
    last = shape[2] - 1
    k_last, v_last = k_at + last * of_k[2], v_at + last * of_v[2]
    q_from, k_from, v_from = query.data_ptr(), key.data_ptr(), value.data_ptr()
    aligned = not (q_from | k_from | v_from | k_at | v_at | k_last | v_last) & 15
    if not aligned or not of_query[2] == of_key[2] == 1 or shape != v.shape or of_key != value.shape:
        return None
    if not device == key.device == value.device == k.device == v.device:
        return None
    if device.index != torch.cuda.current_device():
        return None
    asked = (
        id(theta), id(requant), id(factors), mode, out, device, query.dtype, key.dtype, value.dtype,
        of_query, query.stride(), of_key, key.stride(), value.stride(),
        shape[0], shape[1], shape[3], of_k, of_v, launch.length_class(last + 1),
    )  # fmt: skip
    step = _known.get(asked)
    faults = fault_bytes(device)
    q = torch.empty_like(query, dtype=torch.int8, memory_format=torch.contiguous_format)
    if step is None:
        step = _step_of(new, q, factors, k, v, theta, requant, mode, out)
        if step is None:
            return None
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[asked] = step
    relaunch, table, _, _, most = step.attention
    if last >= most:
        return None
    result, _ = launch.results(q, out)
    copies.held(table)
    for_q, for_k, for_v = step.addresses
    step.quantise(faults, ((q_from, for_q, q.data_ptr()), (k_from, for_k, k_last), (v_from, for_v, v_last)))
    relaunch(q, k, v, None, None, result, None)
    return result


def _step_of(
    new: Tensors, q: torch.Tensor, factors: Tensors, k: torch.Tensor, v: torch.Tensor, theta: HeadParams,
    requant: Requant, mode: Mode | None, out: str,
) -> _Step | None:  # fmt: skip
    """Of launches that both calls know; None where one of them does not."""
    rows = q, k[:, :, -1:], v[:, :, -1:]
    started = quantise.known(list(zip(new, factors, rows, strict=True)))
    attended = launch.known(q, k, v, theta, requant, None, False, mode, out)
    if started is None or attended is None:
        return None
    return _Step(started, attended, factors, tuple(factor.data_ptr() for factor in factors))
