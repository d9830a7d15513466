"""Runs the AI Engine kernels on this machine.

The same sources, the same bits, and a trace of what they did.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.aie import _emulation
from hccs.errors import DtypeError, MaskError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.ops import arguments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.aie.cycles.program import RawOperation

LANES = 32
"""Row lengths come in multiples of this."""

MAX_COLUMNS = 512
"""The longest row a tile's kernel takes."""

TILE_ROWS = 64
"""Rows of one pass over a tile, and of the modelled kernel call."""

_MODES = list(Mode)


class Kernel(str, enum.Enum):
    """Which kernel: ours, or the paper's row-at-a-time one, which knows neither lengths nor short rows."""

    BLOCKED = "blocked"
    BY_ROW = "by_row"


def rows_multiple(n: int) -> int:
    """Kernels take rows in multiples of this, enough for a pipelined loop; emulation adds empty ones."""
    return 32 if n <= 128 else 16


def require_columns(n: int) -> None:
    """Refuse row lengths that the kernels were not written for."""
    if n % LANES or not LANES <= n <= MAX_COLUMNS:
        padded = min(-(-max(n, 1) // LANES) * LANES, MAX_COLUMNS)
        raise ShapeError(
            f"rows of a multiple of {LANES} columns, up to {MAX_COLUMNS}",
            f"{n} columns",
            f"Pad the rows to {padded} columns and give their lengths."
            if n <= MAX_COLUMNS
            else "Longer rows do not fit one tile's kernel.",
        )


def softmax(
    x: NDArray[np.int8],
    theta: HeadParams,
    mode: Mode | str = Mode.I16_DIV,
    lengths: NDArray[Any] | None = None,
    kernel: Kernel | str = Kernel.BLOCKED,
) -> NDArray[Any]:
    """Run an AI Engine kernel on int8 `x` [..., q, k] by emulation; the result equals
    `hccs.reference.softmax.softmax`.

    theta's shape broadcasts against x.shape[:-2]; `lengths`, the valid columns of each row, against
    x.shape[:-1].

    >>> softmax(np.zeros((1, 32), np.int8), HeadParams(B=8, S=0, D=1), "u8_clb")[0, :3]
    array([7, 7, 7], dtype=uint8)
    """
    mode, kernel = Mode(mode), Kernel(kernel)
    groups, n = _groups(x)
    theta.require_columns(n)
    try:
        params = np.broadcast_to(theta.packed, (*x.shape[:-2], 3)).reshape(-1, 3)
    except ValueError as error:
        raise ShapeError(
            f"theta that broadcasts to {x.shape[:-2]}", str(theta.shape), "Give one (B, S, D) per head."
        ) from error
    sizes = _lengths(lengths, x.shape)
    if kernel is Kernel.BY_ROW:
        _require_full_rows(params, n, mode, lengths)
    rows = groups.shape[1]
    padded = -(-rows // rows_multiple(n)) * rows_multiple(n)
    out = np.empty((len(groups), rows, n), mode.dtype)
    block = np.zeros((padded, n), np.int8)
    result = np.empty((padded, n), mode.dtype)
    for index, (group, (B, S, D)) in enumerate(zip(groups, params.tolist(), strict=True)):
        block[:rows] = group
        row_lengths = None
        if sizes is not None:
            row_lengths = np.zeros(padded, np.int16)
            row_lengths[:rows] = sizes[index]
        _emulation.integer_kernel(
            kernel is Kernel.BY_ROW, _MODES.index(mode), block, row_lengths, _bytes(result), n, B, S, D, False
        )
        out[index] = result[:rows]
    return out.reshape(x.shape)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.view(np.uint8).reshape(-1)


def _groups(x: NDArray[np.int8]) -> tuple[NDArray[np.int8], int]:
    if not isinstance(x, np.ndarray) or x.dtype != np.int8:
        raise DtypeError(
            "int8 logits", str(getattr(x, "dtype", type(x).__name__)), "Quantise the logits first."
        )
    if x.ndim < 2 or x.size == 0:
        raise ShapeError(
            "non-empty logits [..., rows, columns]", f"shape {x.shape}", "For one row write x[None]."
        )
    require_columns(x.shape[-1])
    return np.ascontiguousarray(x).reshape(-1, *x.shape[-2:]), x.shape[-1]


def _lengths(lengths: Any, shape: tuple[int, ...]) -> NDArray[np.int16] | None:
    masking, array = arguments.selection(lengths, shape)
    if masking == arguments.NO_MASK:
        return None
    if masking == arguments.MASK:
        raise MaskError("integer row lengths", "a mask", "Masks are prefixes here: pass their lengths.")
    sizes: NDArray[np.int16] = np.broadcast_to(array, shape[:-1]).astype(np.int16).reshape(-1, shape[-2])
    return sizes


def _require_full_rows(params: NDArray[np.int32], n: int, mode: Mode, lengths: NDArray[Any] | None) -> None:
    if lengths is not None:
        raise MaskError("full rows for the row-at-a-time kernel", "row lengths", "Use the blocked kernel.")
    smallest = int((n * (params[:, 0] - params[:, 1] * params[:, 2])).min())
    if mode.is_u8 and smallest < 256:
        raise ParameterError(
            "n*(B - S*D) >= 256 for the row-at-a-time kernel's u8 modes",
            str(smallest),
            "Use the blocked kernel.",
        )


def trace(
    kernel: Kernel | str, mode: Mode | str, n: int, theta: HeadParams, rows: int = TILE_ROWS
) -> list[RawOperation]:
    """What an integer kernel does on `rows` rows of one head, operation by operation.

    Values do not matter to it.
    """
    require_columns(n)
    mode, kernel = Mode(mode), Kernel(kernel)
    x = (np.arange(rows * n) * 37 % 251 - 125).astype(np.int8).reshape(rows, n)
    out = np.empty((rows, n), mode.dtype)
    B, S, D = theta.packed.tolist()
    recorded = _emulation.integer_kernel(
        kernel is Kernel.BY_ROW, _MODES.index(mode), x, None, _bytes(out), n, B, S, D, True
    )
    return recorded or []


def softmax_bf16(x: NDArray[np.float32], native_exp: bool) -> NDArray[np.float32]:
    """The BF16 baseline on float rows [rows, columns], columns a multiple of 16.

    Float32 copies in and out of BF16.
    """
    if x.ndim != 2 or x.shape[1] % 16 or x.size == 0:
        raise ShapeError(
            "rows of a multiple of 16 columns", f"shape {x.shape}", "Pad with very negative logits."
        )
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    out = np.empty_like(rounded)
    _emulation.bf16_kernel(native_exp, rounded, out, x.shape[1], False)
    return (out.astype(np.uint32) << 16).view(np.float32)


def trace_bf16(native_exp: bool, n: int, rows: int = 8) -> list[RawOperation]:
    """What the BF16 baseline does on `rows` rows of n columns."""
    x = np.zeros((rows, n), np.uint16)
    return _emulation.bf16_kernel(native_exp, x, np.empty_like(x), n, True) or []
