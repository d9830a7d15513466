"""`attention`: argument checks, then the kernel for the arrays at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.instruction_sets import cores
from hccs.errors import DtypeError, HccsError, MaskError, ModeError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import MAX_HEAD_DIM, Requant
from hccs.ops import softmax as door

OUTPUTS = ("float32", "float16", "bfloat16", "int8", "pair")
"""What attention can return; the two half formats are for torch tensors."""

_DTYPES = {"pair": np.int32, "float32": np.float32, "int8": np.int8}
_NATIVE_OUTPUTS = {name: (number, _DTYPES[name]) for number, name in enumerate(_native.OUTPUTS)}

# Multiply-adds that are worth starting a thread for.
_WORK_PER_THREAD = 1 << 25


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

    `theta` and `requant` hold one value per head, or arrays that broadcast against q.shape[:-2]. `valid`
    tells which keys take part, as in `hccs.softmax` for logits [..., heads, nq, nk]: a boolean mask, or row
    lengths (faster). With `causal` the last query sees all keys, the one before all but one, and so on.

    `out` names the result: "float32" [..., heads, nq, d]; "float16" or "bfloat16" for torch tensors; "int8",
    for which `requant` needs an output factor; or "pair" for the exact integers (N, Z), whose quotient times
    v_scale is the output. `mode` "u8_div" or "u8_clb" rounds probabilities first, as the paper does;
    otherwise only the output is divided. NumPy arrays give NumPy arrays, torch tensors torch tensors.

    >>> q, k = np.array([[[3, 5]]], np.int8), np.array([[[7, -2], [-6, 4], [1, 1]]], np.int8)
    >>> v = np.array([[[10, 20], [-30, 40], [50, -60]]], np.int8)
    >>> from hccs import FixedPoint
    >>> requant = Requant(FixedPoint(multiplier=1, shift=1), v_scale=0.5)
    >>> attention(q, k, v, HeadParams(B=300, S=5, D=40), requant)
    array([[[ 5.346821  , -0.23121387]]], dtype=float32)
    >>> attention(q, k, v, HeadParams(B=300, S=5, D=40), requant, valid=np.array([2]), out="pair")
    (array([[[-5250, 17000]]], dtype=int32), array([[575]], dtype=int32))
    """
    if type(q) is not np.ndarray and door.is_tensor(q):
        from hccs.ops import attention_tensor

        return attention_tensor.attention(q, k, v, theta, requant, valid, causal, mode, out, threads)
    arrays = {}
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, np.ndarray):
            raise DtypeError(
                f"{name} to be a NumPy array like q, or all three torch tensors",
                type(given).__name__,
                "Convert it with numpy.asarray.",
            )
        if given.dtype != np.int8:
            raise not_int8(name, given.dtype)
        # Rows must be contiguous; other strides, as of heads split out of one projection, need no copy.
        arrays[name] = given if given.strides[-1:] == (1,) else np.ascontiguousarray(given)
    check_arguments(q.shape, k.shape, v.shape, theta, requant, causal, out)
    mode = check_mode(mode)
    if out not in _NATIVE_OUTPUTS:
        raise DtypeError("torch tensors for half precision", "NumPy arrays", "Use out='float32'.")
    if threads is None:
        threads = max(1, min(cores(), 2 * q.size * k.shape[-2] // _WORK_PER_THREAD))
    else:
        door.check_threads(threads)
    output, dtype = _NATIVE_OUTPUTS[out]
    result, sums = np.empty(q.shape, dtype), np.empty(q.shape[:-1], np.int32) if out == "pair" else None
    masking, valid = door.selection(valid)
    operation = _native.DEFERRED if mode is None else _native.MODES.index(mode.value)

    def run() -> int:
        return _native.attention(
            arrays["q"], arrays["k"], arrays["v"], theta.packed, requant.packed,
            masking, valid, bool(causal), operation, output, result, sums, int(threads),
        )  # fmt: skip

    status = run()
    logits = (*q.shape[:-1], k.shape[-2])
    if status == _native.MASK_LAYOUT:
        valid = np.ascontiguousarray(np.broadcast_to(valid, logits))
        status = run()
    if status != _native.DONE:
        raise _refusal(status, logits, theta, requant, valid)
    return result if sums is None else (result, sums)


def check_arguments(
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    theta: Any,
    requant: Any,
    causal: Any,
    out: Any,
) -> None:
    """Refuse shapes, parameters and options that attention has no meaning for, on any device."""
    if len(q) < 2:
        raise ShapeError("q of shape [..., heads, nq, d]", f"shape {tuple(q)}", "Add the missing dimensions.")
    if k != v or len(k) != len(q) or k[:-2] != q[:-2] or k[-1] != q[-1]:
        raise ShapeError(
            f"k and v of one shape, like q's {tuple(q)} in all but the rows",
            f"k {tuple(k)}, v {tuple(v)}",
            "Repeat k and v for heads that share them.",
        )
    if not 1 <= q[-1] <= MAX_HEAD_DIM:
        raise ShapeError(
            f"heads of 1 to {MAX_HEAD_DIM} columns, so that q.k stays within 2^24",
            f"d = {q[-1]}",
            "Split the head.",
        )
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    if not isinstance(requant, Requant):
        raise DtypeError(
            "requant to be hccs.Requant", type(requant).__name__, "Make it with Requant.from_scales."
        )
    theta.require_columns(k[-2])
    if not isinstance(causal, (bool, np.bool_)):
        raise DtypeError("causal to be True or False", repr(causal), "Masks go into valid.")
    if causal and q[-2] > k[-2]:
        raise MaskError(
            "at most as many queries as keys with causal",
            f"{q[-2]} queries, {k[-2]} keys",
            "The last query is aligned with the last key.",
        )
    if not isinstance(out, str) or out not in OUTPUTS:
        raise ParameterError(f"out to be one of {', '.join(OUTPUTS)}", repr(out), "It names the result.")
    if out == "int8" and requant.output is None:
        raise ParameterError(
            "requant with an output factor for int8 output",
            "output=None",
            "Give Requant.from_scales the out_scale.",
        )


def check_mode(mode: Mode | str | None) -> Mode | None:
    """The mode of probabilities that come first, or None."""
    if mode is None or Mode(mode).is_u8:
        return None if mode is None else Mode(mode)
    raise ModeError(
        "mode None, 'u8_div' or 'u8_clb'",
        repr(Mode(mode).value),
        "Without a mode no probability is rounded at all; that is the most precise.",
    )


def not_int8(name: str, dtype: Any) -> DtypeError:
    """The refusal of anything but int8."""
    return DtypeError(
        f"{name} of dtype int8",
        f"dtype {dtype}",
        "Quantise it first: clamp(round(value / scale), -128, 127).",
    )


def _refusal(
    status: int, logits: tuple[int, ...], theta: HeadParams, requant: Requant, valid: Any
) -> HccsError:
    if status == _native.REQUANT_SHAPE:
        return ShapeError(
            f"requant's shape to broadcast against q.shape[:-2] = {logits[:-2]}",
            f"requant of shape {requant.shape}",
            "For q [batch, heads, nq, d] give one factor per head: shape [heads].",
        )
    return door.refusal(status, logits, theta, valid, "[..., heads, nq, nk]")
