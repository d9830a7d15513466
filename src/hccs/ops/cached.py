"""Attention over an int8 cache that is still to get its last rows, as in a step of generation on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hccs.numbers.heads import HeadParams
from hccs.numbers.requant import Requant
from hccs.ops.attention import attention
from hccs.ops.dispatch import backend
from hccs.ops.quantise import by_factors

if TYPE_CHECKING:
    import torch


def append_and_attend(
    new: tuple[torch.Tensor, ...], factors: tuple[torch.Tensor, ...], k: torch.Tensor, v: torch.Tensor,
    theta: HeadParams, requant: Requant, *, valid: Any, causal: bool, mode: Any, out: str,
    end: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """`attention` of a float q [batch, heads, n, d] over int8 k and v on a GPU.

    `new` are q and what becomes the last rows of k and v; `factors` make them int8, as `by_factor` does. With
    `end`, int32 [1] on the GPU, k and v have room for more, and end there.
    """
    if valid is None and not causal and end is None:
        known = backend("attention", "cuda").step_again(new, factors, k, v, theta, requant, mode, out)
        if known is not None:
            return known
    query, key, value = new
    q = k.new_empty(query.shape)
    rows = (q, last_rows(k, key), last_rows(v, value)) if end is None else (q, k, v)
    by_factors(list(zip(new, factors, rows, strict=True)), end)
    valid = end if valid is None else valid
    result: torch.Tensor = attention(q, k, v, theta, requant, valid=valid, causal=causal, mode=mode, out=out)
    return result


def last_rows(cache: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """As many as there are in `like`."""
    count = like.shape[2]
    return cache.narrow(2, cache.shape[2] - count, count)
