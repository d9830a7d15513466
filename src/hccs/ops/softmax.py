"""`softmax`: argument checks, then the kernel for the array at hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.backends.cpu.instruction_sets import cores
from hccs.errors import DtypeError, HccsError, MaskError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MODES = {
    key: (index, Mode(name).dtype) for index, name in enumerate(_native.MODES) for key in (Mode(name), name)
}
_INT8 = np.dtype(np.int8)

# Below this many elements per thread, starting the thread costs more than it saves.
_ELEMENTS_PER_THREAD = 1 << 21


def softmax(
    x: Any,
    theta: HeadParams,
    mode: Mode | str = "i16_div",
    valid: Any = None,
    *,
    out: Any = None,
    threads: int | None = None,
) -> Any:
    """HCCS probabilities of int8 logits `x` [..., q, k], as integers: divide by `Mode(mode).T` for floats.

    `theta`'s shape broadcasts against x.shape[:-2]: one head's parameters serve all its query rows.
    `valid` tells which columns take part: a boolean mask that broadcasts to x.shape, or integer row lengths
    that broadcast to x.shape[:-1] (faster). Other columns get 0. The result has x's shape; `out` receives it
    if given. NumPy arrays give NumPy arrays, torch tensors (CPU or CUDA) torch tensors. `threads` defaults
    to all cores for large inputs and one for small.

    >>> x = np.array([[10, 3, -2, -20]], dtype=np.int8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div")
    array([[91, 75, 64, 23]], dtype=uint8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div", valid=np.array([2]))
    array([[139, 115,   0,   0]], dtype=uint8)
    """
    if type(x) is not np.ndarray:
        if is_tensor(x):
            from hccs.ops import softmax_tensor as tensor

            return tensor.softmax(x, theta, mode, valid, out, threads)
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
    theta.require_columns(x.shape[-1])
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    masking, valid = selection(valid)
    if out is None:
        out = np.empty(x.shape, dtype)
    else:
        _check_out(out, x.shape, dtype)
    if threads is None:
        threads = default_threads(x.size)
    else:
        check_threads(threads)
    status = _native.softmax(x, theta.packed, mode_index, masking, valid, out, threads)
    if status == _native.MASK_LAYOUT:
        valid = np.ascontiguousarray(np.broadcast_to(valid, x.shape))
        status = _native.softmax(x, theta.packed, mode_index, masking, valid, out, threads)
    if status != _native.DONE:
        raise refusal(status, x.shape, theta, valid, "x.shape")
    return out


def default_threads(elements: int) -> int:
    """All cores for large inputs, one for small."""
    return 1 if elements < 2 * _ELEMENTS_PER_THREAD else min(cores(), elements // _ELEMENTS_PER_THREAD)


def is_tensor(x: Any) -> bool:
    """True for a torch tensor, without importing torch: nobody holds one before torch is loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _as_array(x: Any) -> NDArray[Any]:
    if isinstance(x, np.ndarray):
        return np.asarray(x)  # a subclass: its plain view
    raise DtypeError(
        "x to be a NumPy array or a torch tensor", type(x).__name__, "Convert it with numpy.asarray."
    )


def check_threads(threads: Any) -> None:
    """Refuse what is no number of threads."""
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1:
        raise ParameterError("threads to be an integer >= 1", repr(threads), "Leave it out for the default.")


def selection(valid: Any) -> tuple[int, NDArray[Any] | None]:
    """`valid` as the native code takes it, and which kind it is."""
    if valid is None:
        return _native.NO_MASK, None
    valid = np.asarray(valid)
    masking = _masking(valid.dtype)
    return masking, valid if valid.dtype.isnative else valid.astype(valid.dtype.newbyteorder("="))


def _masking(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return _native.MASK
    if dtype.kind in "iu":
        return _native.LENGTHS
    raise DtypeError(
        "valid to be booleans or integer lengths",
        f"dtype {dtype}",
        "An additive float mask becomes booleans by comparing it with 0.",
    )


def _check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        found = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise DtypeError(
            f"out to be a NumPy array of dtype {dtype}", str(found), "See hccs.Mode(mode).dtype."
        )
    flags = out.flags
    if out.shape != shape or not flags.c_contiguous or not flags.writeable:
        layout = "contiguous" if flags.c_contiguous else "not contiguous"
        access = "writeable" if flags.writeable else "read-only"
        raise ShapeError(
            f"out contiguous, writeable and of x's shape {shape}",
            f"shape {out.shape}, {layout}, {access}",
            "Make it with numpy.empty(x.shape, hccs.Mode(mode).dtype).",
        )


def refusal(status: int, shape: tuple[int, ...], theta: HeadParams, valid: Any, what: str) -> HccsError:
    """What the native code refused, in words; `what` names the logits' shape."""
    if status == _native.THETA_SHAPE:
        return ShapeError(
            f"theta's shape to broadcast against {what}[:-2] = {shape[:-2]}",
            f"theta of shape {theta.shape}",
            "For logits [batch, heads, q, k] give one triple per head: shape [heads].",
        )
    if status == _native.OVERLAP:
        return ShapeError("out to be memory of its own", "memory shared with x", "Pass another array.")
    if status == _native.LENGTH_RANGE:
        return MaskError(
            f"row lengths between 0 and {shape[-1]} columns",
            f"lengths from {valid.min()} to {valid.max()}",
            "A length counts the valid columns from the row's start.",
        )
    return MaskError(
        f"a mask that broadcasts to {what} = {shape}"
        if valid.dtype == bool
        else f"row lengths that broadcast to {what}[:-1] = {shape[:-1]}",
        f"shape {valid.shape}",
        "For [batch, heads, q, k] a padding mask has shape [batch, 1, 1, k], its lengths [batch, 1, 1].",
    )
