"""`softmax`: argument checks, then the kernel for the array at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DtypeError, MaskError, ParameterError, ShapeError
from hccs.kernels import _native
from hccs.kernels.isa import cores
from hccs.spec import HeadParams, Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MODES = {key: (index, mode.dtype) for index, mode in enumerate(Mode) for key in (mode, mode.value)}
_INT8 = np.dtype(np.int8)
_NO_MASK, _LENGTHS, _MASK = range(3)

# Below this many elements per thread, starting the thread costs more than it saves.
_ELEMENTS_PER_THREAD = 1 << 20


def softmax(
    x: NDArray[np.int8],
    theta: HeadParams,
    mode: Mode | str = "i16_div",
    valid: Any = None,
    *,
    out: NDArray[Any] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """HCCS probabilities of int8 logits `x` [..., q, k], as integers: divide by `Mode(mode).T` for floats.

    `theta`'s shape broadcasts against x.shape[:-2]: one head's parameters serve all its query rows.
    `valid` tells which columns take part: a boolean mask that broadcasts to x.shape, or integer row lengths
    that broadcast to x.shape[:-1] (faster). Other columns get 0. The result has x's shape; `out` receives it
    if given. `threads` defaults to all cores for large inputs and one for small.

    >>> x = np.array([[10, 3, -2, -20]], dtype=np.int8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div")
    array([[91, 75, 64, 23]], dtype=uint8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div", valid=np.array([2]))
    array([[139, 115,   0,   0]], dtype=uint8)
    """
    if type(x) is not np.ndarray:
        x = _as_array(x)
    if x.dtype != _INT8:
        raise DtypeError(
            "x of dtype int8",
            f"dtype {x.dtype}",
            "Quantise float logits first: clamp(round(z / scale), -128, 127).",
        )
    if x.ndim == 0:
        raise ShapeError(
            "x with at least one dimension [..., q, k]", "a scalar", "Pass whole rows of logits."
        )
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    try:
        mode_index, dtype = _MODES[mode]
    except (KeyError, TypeError):
        mode_index, dtype = _MODES[Mode(mode)]
    shape = x.shape
    theta.require_columns(shape[-1])
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)

    heads = theta.packed
    groups = None if heads.ndim == 1 else _head_of_group(theta, shape)
    masking = _NO_MASK
    if valid is not None:
        masking, valid = _selection(valid, shape)
    if out is None:
        out = np.empty(shape, dtype)
    else:
        _check_out(out, x, dtype)
    if threads is None:
        threads = 1 if x.size < 2 * _ELEMENTS_PER_THREAD else min(cores(), x.size // _ELEMENTS_PER_THREAD)
    elif isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1:
        raise ParameterError("threads to be an integer >= 1", repr(threads), "Leave it out for the default.")
    rows_per_group = shape[-2] if len(shape) > 1 else 1
    if x.size:
        _native.softmax(x, heads, groups, rows_per_group, mode_index, masking, valid, out, threads)
    return out


def _as_array(x: Any) -> NDArray[Any]:
    if isinstance(x, np.ndarray):
        return np.asarray(x)  # a subclass: its plain view
    raise DtypeError("x to be a NumPy array", type(x).__name__, "Convert it with numpy.asarray.")


def _head_of_group(theta: HeadParams, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """For each block of query rows, which of theta's heads serves it."""
    lead = shape[:-2]
    numbers = np.arange(theta.packed.size // 3, dtype=np.int32).reshape(theta.shape)
    try:
        return np.ascontiguousarray(np.broadcast_to(numbers, lead))
    except ValueError as error:
        raise ShapeError(
            f"theta's shape to broadcast against x.shape[:-2] = {lead}",
            f"theta of shape {theta.shape}",
            "For logits [batch, heads, q, k] give one triple per head: shape [heads].",
        ) from error


def _selection(valid: Any, shape: tuple[int, ...]) -> tuple[int, NDArray[Any]]:
    """`valid` as the kernels take it: (_MASK, booleans of x's shape) or (_LENGTHS, int32 per row)."""
    array = np.asarray(valid)
    if array.dtype == bool:
        mask = _broadcast(array, shape, "a mask that broadcasts to x.shape")
        if mask.strides[-1] != 1 and shape[-1] > 1:
            mask = np.ascontiguousarray(mask)
        return _MASK, mask
    if array.dtype.kind not in "iu":
        raise DtypeError(
            "valid to be booleans or integer lengths",
            f"dtype {array.dtype}",
            "An additive float mask becomes booleans by comparing it with 0.",
        )
    if array.size and (array.min() < 0 or array.max() > shape[-1]):
        raise MaskError(
            f"row lengths between 0 and {shape[-1]} columns",
            f"lengths from {array.min()} to {array.max()}",
            "A length counts the valid columns from the row's start.",
        )
    return _LENGTHS, _broadcast(
        array.astype(np.int32), shape[:-1], "row lengths that broadcast to x.shape[:-1]"
    )


def _broadcast(array: NDArray[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise MaskError(
            f"{what} = {shape}",
            f"shape {array.shape}",
            "For [batch, heads, q, k] a padding mask has shape [batch, 1, 1, k], its lengths [batch, 1, 1].",
        ) from error


def _check_out(out: Any, x: NDArray[np.int8], dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        found = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise DtypeError(
            f"out to be a NumPy array of dtype {dtype}", str(found), "See hccs.Mode(mode).dtype."
        )
    if out.shape != x.shape or not out.flags.c_contiguous or not out.flags.writeable:
        layout = "contiguous" if out.flags.c_contiguous else "not contiguous"
        access = "writeable" if out.flags.writeable else "read-only"
        raise ShapeError(
            f"out contiguous, writeable and of x's shape {x.shape}",
            f"shape {out.shape}, {layout}, {access}",
            "Make it with numpy.empty(x.shape, hccs.Mode(mode).dtype).",
        )
    if np.may_share_memory(out, x):
        raise ShapeError("out to be memory of its own", "memory shared with x", "Pass another array.")
