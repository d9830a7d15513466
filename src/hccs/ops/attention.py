"""`attention`: arguments checked, then the kernel for the arrays at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.ops import arguments, operands
from hccs.ops.arguments import LOGITS
from hccs.ops.dispatch import backend

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array = TypeVar("Array", NDArray[Any], torch.Tensor)


@overload
def attention(  # type: ignore[overload-overlap]
    q: Array,
    k: Array,
    v: Array,
    theta: HeadParams,
    requant: Requant,
    *,
    valid: Any = ...,
    causal: bool = ...,
    mode: Mode | str | None = ...,
    out: Literal["pair"],
    threads: int | None = ...,
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    theta: HeadParams,
    requant: Requant,
    *,
    valid: Any = ...,
    causal: bool = ...,
    mode: Mode | str | None = ...,
    out: str = ...,
    threads: int | None = ...,
) -> Array: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    theta: HeadParams,
    requant: Requant,
    *,
    valid: Any = None,
    causal: bool = False,
    mode: Mode | str | None = None,
    out: str = "float32",
    threads: int | None = None,
) -> Any:
    """Attention of int8 q [..., heads, nq, d] over int8 k and v [..., heads, nk, d], in integers throughout.

    k and v may have fewer heads than q, a divisor of their number, as in grouped-query attention: each of
    theirs then serves as many neighbouring heads of q. They may be views, as of a cache that has room for
    more keys: rows must be contiguous, nothing else.

    `theta` and `requant` hold one value per head, or arrays that broadcast against q.shape[:-2]. `valid`
    tells which keys take part, as in `hccs.softmax` for logits [..., heads, nq, nk]: a boolean mask, or row
    lengths (faster). With `causal` the last query sees all keys, the one before all but one, and so on.

    `out` names the result: "float32" [..., heads, nq, d]; "float16" or "bfloat16" for torch tensors; "int8",
    for which `requant` needs an output factor; or "pair" for the exact integers (N, Z), whose quotient times
    v_scale is the output. `mode`, a uint8 one, rounds probabilities first, as the paper does; otherwise only
    the output is divided. NumPy arrays give NumPy arrays, torch tensors torch tensors.

    >>> q, k = np.array([[[3, 5]]], np.int8), np.array([[[7, -2], [-6, 4], [1, 1]]], np.int8)
    >>> v = np.array([[[10, 20], [-30, 40], [50, -60]]], np.int8)
    >>> from hccs import FixedPoint
    >>> requant = Requant(FixedPoint(multiplier=1, shift=1), v_scale=0.5)
    >>> attention(q, k, v, HeadParams(B=300, S=5, D=40), requant)
    array([[[ 5.346821  , -0.23121387]]], dtype=float32)
    >>> attention(q, k, v, HeadParams(B=300, S=5, D=40), requant, valid=np.array([2]), out="pair")
    (array([[[-5250, 17000]]], dtype=int32), array([[575]], dtype=int32))
    """
    if threads is None and type(q) is not np.ndarray and getattr(q, "is_cuda", False):
        known = backend("attention", "cuda").again(q, k, v, theta, requant, valid, causal, mode, out)
        if known is not None:
            return known
    operands.require_operands(q, k, v)
    device, keys = arguments.device_of(q), k.shape[-2]
    if not isinstance(theta, HeadParams):
        raise arguments.no_theta(theta)
    theta.require_columns(keys)
    operands.require_requant(requant, out, not isinstance(q, np.ndarray))
    operands.require_causal(causal, q.shape[-2], keys)
    first = operands.probabilities_first(mode)
    masking = arguments.NO_MASK
    if valid is not None:
        masking, valid = arguments.read_valid(valid, q, keys)
    if threads is not None:
        arguments.require_threads(threads)
    if device != "cpu":
        arguments.require_shapes(LOGITS, (*q.shape[:-1], keys), theta, masking, valid, requant)
    return backend("attention", device).attention(
        q, k, v, theta, requant, masking, valid, bool(causal), first, out, threads
    )
