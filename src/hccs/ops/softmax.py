"""`softmax`: arguments checked, then the kernel for the array at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy import empty, ndarray
from numpy.typing import NDArray

from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import arguments
from hccs.ops.arguments import INT8, NO_MASK
from hccs.ops.dispatch import backend

if TYPE_CHECKING:
    import torch

    Array = TypeVar("Array", NDArray[Any], torch.Tensor)

_MODES: dict[Any, tuple[Mode, np.dtype[Any]]] = {mode: (mode, mode.dtype) for mode in Mode}  # or their names


def softmax(
    x: Array,
    theta: HeadParams,
    mode: Mode | str = "i16_div",
    valid: Any = None,
    *,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """HCCS probabilities of int8 logits `x` [..., q, k], as integers: divide by `Mode(mode).T` for floats.

    `theta`'s shape broadcasts against x.shape[:-2]: one head's parameters serve all its query rows.
    `valid` tells which columns take part: a boolean mask that broadcasts to x.shape, or integer row lengths
    that broadcast to x.shape[:-1] (faster). Other columns get 0, and so does what a masked array masks. The
    result has x's shape; `out` receives it if given. NumPy arrays give NumPy arrays, torch tensors (CPU or
    CUDA) torch tensors. `threads` defaults to all cores for large inputs and one for small.

    >>> x = np.array([[10, 3, -2, -20]], dtype=np.int8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div")
    array([[91, 75, 64, 23]], dtype=uint8)
    >>> softmax(x, HeadParams(B=444, S=11, D=40), mode="u8_div", valid=np.array([2]))
    array([[139, 115,   0,   0]], dtype=uint8)
    """
    # A call on one short row is dominated by what happens here: functions are entered only where needed.
    device = "cpu"
    if type(x) is not ndarray:
        x, valid = arguments.unmasked("x", x, valid)
        device = arguments.device_of(x)
    if x.dtype is not INT8:
        arguments.require_int8("x", x)
    shape = x.shape
    if not shape:
        raise arguments.scalar("x")
    if not isinstance(theta, HeadParams):
        raise arguments.no_theta(theta)
    theta.require_columns(shape[-1])
    try:
        mode, dtype = _MODES[mode]
    except (KeyError, TypeError):
        mode, dtype = _MODES[Mode(mode)]  # which refuses what is none
    masking = NO_MASK
    if valid is not None:
        masking, valid = arguments.read_valid(valid, x, shape[-1])
    if threads is not None:
        arguments.require_threads(threads)
    if device != "cpu":
        arguments.require_shapes("x.shape", shape, theta, masking, valid)
    if out is None:
        out = empty(shape, dtype) if type(x) is ndarray else arguments.empty(x, shape, dtype.name)
    else:
        arguments.require_out(out, x, dtype)
    given: Any = x
    filled: Any = out
    if device == "cpu" and type(x) is not ndarray:
        given, filled = given.numpy(), filled.numpy()  # they share memory; integers have no gradient
    backend("softmax", device).softmax(given, theta, mode, masking, valid, filled, threads)
    return out
