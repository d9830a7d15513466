"""Runs the AI Engine kernels on this machine: the same sources, the same bits, a trace of what they did."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DtypeError, MaskError, ParameterError, ShapeError
from hccs.numbers.heads import ONE_LINE, HeadParams
from hccs.numbers.modes import INT16_MAX, MAX_SLOPE, Mode
from hccs.ops import arguments
from hccs_aie import _emulation
from hccs_aie.arguments import Choice, integer

if TYPE_CHECKING:
    from hccs_aie.cycles.program import RawOperation

LANES = 32
"""Row lengths come in multiples of this."""

MAX_COLUMNS = 512
"""The longest row a tile's kernel takes."""

MODELLED_ROWS = 64
"""Rows of the modelled call, and of those that were compiled."""

TILE_ROWS = 128
"""Rows of one pass over the kernel's scratch arrays."""

BF16_LANES = 16
"""Row lengths of the BF16 baseline come in multiples of this."""

_MODES = list(Mode)

_ROWS_AT_ONCE = 1 << 14
"""The kernels count elements in 32 bits, and copies of few rows stay in the cache."""


class Kernel(Choice):
    """Which kernel: ours, or the paper's row-at-a-time one, which knows neither lengths nor short rows."""

    BLOCKED = "blocked"
    BY_ROW = "by_row"


def rows_multiple(n: int) -> int:
    """Kernels take rows in multiples of this, enough for a pipelined loop; emulation adds empty ones."""
    return 32 if n <= 128 else 16


def takes_columns(n: int) -> bool:
    return n % LANES == 0 and LANES <= n <= MAX_COLUMNS


def require_columns(n: int) -> None:
    n = integer("n", n)
    if not takes_columns(n):
        padded = min(-(-max(n, 1) // LANES) * LANES, MAX_COLUMNS)
        raise ShapeError(
            f"rows of a multiple of {LANES} columns, up to {MAX_COLUMNS}",
            f"{n} columns",
            f"Pad the rows to {padded} columns and give their lengths."
            if n <= MAX_COLUMNS
            else "Longer rows do not fit one tile's kernel.",
        )


def require_theta(theta: HeadParams, n: int) -> None:
    theta.require_columns(n)
    if not theta.wide:
        return
    B, S, _, S2, _, f = np.moveaxis(theta.packed, -1, 0)
    if f.any():
        raise ParameterError(
            "scores without a shift in the AI Engine kernels",
            f"f = {int(f.max())}",
            "Calibrate with scores='int16' and sum_bits=15 for this target.",
        )
    if int(B.max()) * n > INT16_MAX:
        raise ParameterError(
            f"row sums of 15 bits in the AI Engine kernels: B <= {INT16_MAX // n} for {n} columns",
            f"B = {int(B.max())}",
            "Calibrate with sum_bits=15 for this target.",
        )
    if int((S + S2).max()) > MAX_SLOPE:
        raise ParameterError(
            f"S + S2 <= {MAX_SLOPE} in the AI Engine kernels",
            str(int((S + S2).max())),
            "Use one line, or smaller slopes.",
        )


def _require_theta(theta: HeadParams, n: int) -> None:
    if not isinstance(theta, HeadParams):
        raise DtypeError(
            "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
        )
    require_theta(theta, n)


def softmax(
    x: NDArray[np.int8],
    theta: HeadParams,
    mode: Mode | str = Mode.I16_DIV,
    lengths: NDArray[Any] | None = None,
    kernel: Kernel | str = Kernel.BLOCKED,
) -> NDArray[Any]:
    """Run an AI Engine kernel on int8 `x` [..., q, k] by emulation; the result is the reference's.

    theta's shape broadcasts against x.shape[:-2]; `lengths`, the valid columns of each row, against
    x.shape[:-1].

    >>> softmax(np.zeros((1, 32), np.int8), HeadParams(B=8, S=0, D=1), "u8_clb")[0, :3]
    array([7, 7, 7], dtype=uint8)
    """
    mode, kernel = Mode(mode), Kernel(kernel)
    groups, n = _groups(x)
    _require_theta(theta, n)
    try:
        width = theta.packed.shape[-1]
        params = np.broadcast_to(theta.packed, (*x.shape[:-2], width)).reshape(-1, width)
    except ValueError as error:
        raise ShapeError(
            f"theta that broadcasts to {x.shape[:-2]}", str(theta.shape), "Give one (B, S, D) per head."
        ) from error
    sizes = _lengths(lengths, x.shape)
    if kernel is Kernel.BY_ROW:
        _require_full_rows(theta, params, n, mode, lengths)
    rows = groups.shape[1]
    thetas = params.tolist()
    out = np.empty((len(groups), rows, n), mode.dtype)
    for index, start in itertools.product(range(len(groups)), range(0, rows, _ROWS_AT_ONCE)):
        part = slice(start, min(start + _ROWS_AT_ONCE, rows))
        taken = part.stop - part.start
        padded = -(-taken // rows_multiple(n)) * rows_multiple(n)
        block = np.zeros((padded, n), np.int8)
        block[:taken] = groups[index, part]
        row_lengths = None
        if sizes is not None:
            row_lengths = np.zeros(padded, np.int16)
            row_lengths[:taken] = sizes[index, part]
        result = np.empty((padded, n), mode.dtype)
        _run(kernel, mode, block, row_lengths, result, thetas[index], record=False)
        out[index, part] = result[:taken]
    return out.reshape(x.shape)


def _run(
    kernel: Kernel,
    mode: Mode,
    x: NDArray[np.int8],
    lengths: NDArray[np.int16] | None,
    out: NDArray[Any],
    theta: list[int],
    record: bool,
) -> list[RawOperation]:
    # The emulation takes five numbers of a head; S2 = -1 stands for the paper's form.
    B, S, D, S2, D2 = [*theta, -1, 0] if len(theta) == ONE_LINE else theta[:5]
    by_row, number, n = kernel is Kernel.BY_ROW, _MODES.index(mode), x.shape[1]
    result = out.view(np.uint8).reshape(-1)
    made = _emulation.integer_kernel(by_row, number, x, lengths, result, n, B, S, D, S2, D2, record)
    return made or []


def _groups(x: NDArray[np.int8]) -> tuple[NDArray[np.int8], int]:
    if not isinstance(x, np.ndarray) or x.dtype != np.int8:
        raise DtypeError(
            "int8 logits", str(getattr(x, "dtype", type(x).__name__)), "Quantise the logits first."
        )
    if x.ndim < 2 or x.size == 0:
        raise ShapeError(
            "non-empty logits [..., rows, columns]", f"shape {x.shape}", "For one row write x[None]."
        )
    if isinstance(x, np.ma.MaskedArray):
        raise DtypeError("logits without a mask of their own", "a masked array", "Pass row lengths.")
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


def _require_full_rows(
    theta: HeadParams, params: NDArray[np.int32], n: int, mode: Mode, lengths: NDArray[Any] | None
) -> None:
    theta.require_one_line("in the paper's row-at-a-time kernel", "Use the blocked kernel.")
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
    kernel: Kernel | str,
    mode: Mode | str,
    n: int,
    theta: HeadParams,
    rows: int = MODELLED_ROWS,
    long_bodies: bool = False,
) -> list[RawOperation]:
    """What an integer kernel does on `rows` rows of one head, operation by operation, whatever the logits.

    With `long_bodies` as the open compiler sees it, which does not pipeline the loops.
    """
    require_columns(n)
    mode, kernel = Mode(mode), Kernel(kernel)
    _require_theta(theta, n)
    if theta.shape:
        raise ShapeError("theta of one head", f"shape {theta.shape}", "Trace the heads one by one.")
    rows, batch = integer("rows", rows), 1 if kernel is Kernel.BY_ROW else rows_multiple(n)
    if rows < batch or rows % batch:
        raise ShapeError(f"rows in multiples of {batch} at {n} columns", str(rows), "Round them up.")
    x = (np.arange(rows * n) * 37 % 251 - 125).astype(np.int8).reshape(rows, n)
    out = np.empty((rows, n), mode.dtype)
    if kernel is Kernel.BY_ROW:
        theta.require_one_line("in the paper's row-at-a-time kernel", "Use the blocked kernel.")
    _emulation.long_bodies(long_bodies)
    try:
        return _run(kernel, mode, x, None, out, theta.packed.tolist(), record=True)
    finally:
        _emulation.long_bodies(False)


def trace_bf16(native_exp: bool, n: int, rows: int = 8) -> list[RawOperation]:
    n, rows = integer("n", n), integer("rows", rows)
    if n < BF16_LANES or n % BF16_LANES or rows < 1:
        raise ShapeError(
            f"one row or more of a multiple of {BF16_LANES} columns", f"{rows} of {n}", "Round n up."
        )
    x = np.zeros((rows, n), np.uint16)
    return _emulation.bf16_kernel(native_exp, x, np.empty_like(x), n, True) or []
