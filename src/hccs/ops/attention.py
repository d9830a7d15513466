"""`attention`: its own arguments checked, then the kernel for the arrays at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.errors import DtypeError, MaskError, ModeError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import MAX_HEAD_DIM, Requant
from hccs.ops import arguments
from hccs.ops.arguments import INT8, is_tensor, require_int8, require_unmasked
from hccs.ops.dispatch import backend


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
    require_operands(q, k, v)
    device, keys = arguments.device_of(q), k.shape[-2]
    if not isinstance(theta, HeadParams):
        raise arguments.no_theta(theta)
    theta.require_columns(keys)
    require_requant(requant, out, not isinstance(q, np.ndarray))
    require_causal(causal, q.shape[-2], keys)
    first = probabilities_first(mode)
    masking = arguments.NO_MASK
    if valid is not None:
        masking, valid = arguments.read_valid(valid, q, keys)
    if threads is not None:
        arguments.require_threads(threads)
    if device != "cpu":
        arguments.require_shapes(arguments.LOGITS, (*q.shape[:-1], keys), theta, masking, valid, requant)
    tensors = device == "cpu" and not isinstance(q, np.ndarray)
    if tensors:
        q, k, v = q.detach().numpy(), k.detach().numpy(), v.detach().numpy()  # they share memory
    found = backend("attention", device).attention(
        q, k, v, theta, requant, masking, valid, bool(causal), first, out, threads
    )
    return arguments.as_tensors(found, out) if tensors else found


OUTPUTS = ("float32", "float16", "bfloat16", "int8", "pair")
"""What attention can return; the two half formats are for torch tensors."""


def require_operands(q: Any, k: Any, v: Any) -> None:
    """Refuse q, k and v that are not int8, of one kind, on one device and of shapes that belong together."""
    tensors = not isinstance(q, np.ndarray) and is_tensor(q)
    for name, given in (("q", q), ("k", k), ("v", v)):
        if type(given) is np.ndarray and given.dtype is INT8 and not tensors:
            continue
        if not (is_tensor(given) if tensors else isinstance(given, np.ndarray)):
            raise DtypeError(
                f"{name} to be a torch tensor like q"
                if tensors
                else f"{name} to be a NumPy array like q, or all three torch tensors",
                type(given).__name__,
                "Use torch.as_tensor." if tensors else "Convert it with numpy.asarray.",
            )
        require_unmasked(name, given, "Say in valid which keys take part, and pass its plain .data.")
        require_int8(name, given)
        if tensors and given.device != q.device:
            raise DtypeError(
                f"{name} on q's device {q.device}", f"device {given.device}", "Move it with .to()."
            )
    shape, keys, values = q.shape, k.shape, v.shape
    if len(shape) < 2:
        raise ShapeError(
            "q of shape [..., heads, nq, d]", f"shape {tuple(shape)}", "Add the missing dimensions."
        )
    if (
        keys != values
        or len(keys) != len(shape)
        or (keys[:-2] != shape[:-2] and not _are_shared(keys[:-2], shape[:-2]))
        or keys[-1] != shape[-1]
    ):
        raise ShapeError(
            f"k and v of one shape, like q's {tuple(shape)} in all but the rows",
            f"k {tuple(keys)}, v {tuple(values)}",
            "Heads may share k and v: their number [..., heads, nk, d] then divides q's.",
        )
    if not 1 <= shape[-1] <= MAX_HEAD_DIM:
        raise ShapeError(
            f"heads of 1 to {MAX_HEAD_DIM} columns, so that q.k stays within 2^24",
            f"d = {shape[-1]}",
            "Split the head.",
        )


def _are_shared(of_keys: tuple[int, ...], of_queries: tuple[int, ...]) -> bool:
    """Whether a whole number of query heads goes to every key head, and all before the heads is alike."""
    return of_keys[:-1] == of_queries[:-1] and of_keys[-1] > 0 and of_queries[-1] % of_keys[-1] == 0


def require_requant(requant: Any, out: Any, tensors: bool) -> None:
    """Refuse outputs that do not exist, and what are no factors, or none for this output."""
    if not isinstance(requant, Requant):
        raise DtypeError(
            "requant to be hccs.Requant", type(requant).__name__, "Make it with Requant.from_scales."
        )
    if not isinstance(out, str) or out not in OUTPUTS:
        array = hasattr(out, "dtype")
        raise ParameterError(
            f"out to be one of {', '.join(OUTPUTS)}",
            f"an array of dtype {out.dtype}" if array else repr(out),
            "It names the kind of result, which is always new: attention writes into no array of yours."
            if array
            else "It names the result.",
        )
    if out == "int8" and requant.output is None:
        raise ParameterError(
            "requant with an output factor for int8 output",
            "output=None",
            "Give Requant.from_scales the out_scale.",
        )
    if out in ("float16", "bfloat16") and not tensors:
        raise DtypeError("torch tensors for half precision", "NumPy arrays", "Use out='float32'.")


def require_causal(causal: Any, queries: int, keys: int) -> None:
    """Refuse what is neither True nor False, and more queries than keys."""
    if not isinstance(causal, (bool, np.bool_)):
        raise DtypeError("causal to be True or False", repr(causal), "Masks go into valid.")
    if causal and queries > keys:
        raise MaskError(
            "at most as many queries as keys with causal",
            f"{queries} queries, {keys} keys",
            "The last query is aligned with the last key.",
        )


def probabilities_first(mode: Any) -> Mode | None:
    """The mode of attention's probabilities, or None where only its output is divided."""
    if mode is None:
        return None
    found = Mode(mode)
    if found.is_u8:
        return found
    raise ModeError(
        "mode None, 'u8_div', 'u8_clb' or 'u8_lin'",
        repr(found.value),
        "Without a mode no probability is rounded at all; that is the most precise.",
    )
