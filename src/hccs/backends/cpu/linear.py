"""Linear layers by the native kernels: packed once, then run with what follows them in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.backends.cpu import _native
from hccs.errors import DtypeError, ShapeError
from hccs.numbers.multipliers import INT8_LIMIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.numbers.multipliers import LinearParams

_OUTPUTS = {name: number for number, name in enumerate(_native.LINEAR_OUTPUTS)}
_DTYPES = {
    "int32": np.int32,
    "int8": np.int8,
    "int8_table": np.int8,
    "int16": np.int16,
    "sum_int32": np.int32,
    "sum_int16": np.int16,
}


class PackedLinear:
    """A linear layer packed for the instruction set in use, with which it runs from then on.

    int8 values may also be stored turned: x ^ 0x80, the unsigned byte x + 128, which the VNNI instructions
    want. Arrays of uint8 are taken to be so, as inputs and as `out`.
    """

    def __init__(self, layer: LinearParams) -> None:
        self.outputs, self.inputs = layer.weight.shape
        self._int8 = layer.limit == INT8_LIMIT
        self._scores = layer.multiplier is None
        self._native = _native.PackedLinear(
            np.ascontiguousarray(layer.weight),
            np.ascontiguousarray(layer.bias),
            None if layer.multiplier is None else np.ascontiguousarray(layer.multiplier),
        )

    def __call__(
        self,
        x: NDArray[Any],
        *,
        table: NDArray[np.int8] | None = None,
        stream: NDArray[np.int16] | None = None,
        clamped: bool = False,
        out: NDArray[Any] | None = None,
        threads: int = 1,
    ) -> NDArray[Any]:
        """rq(W x + b) of rows [..., inputs], then entries of a `table`, or the sum with an int16 `stream`.

        The sum is int32, or if `clamped` an int16 within +-32767.
        """
        output = self._output(table, stream, clamped)
        if x.dtype not in (np.int8, np.uint8) or x.ndim < 1 or x.shape[-1] != self.inputs:
            raise ShapeError(
                f"int8 rows of {self.inputs}", f"{x.dtype} of shape {x.shape}", "One row per token."
            )
        shape = (*x.shape[:-1], self.outputs)
        if out is None:
            out = np.empty(shape, _DTYPES[output])
        elif out.shape != shape or not out.flags.c_contiguous:
            raise ShapeError(f"out of shape {shape}, contiguous", f"{out.shape}", "Leave it out.")
        if stream is not None and stream.shape != shape:
            raise ShapeError(f"a stream of shape {shape}", f"{stream.shape}", "One value per output.")
        self._native.run(
            _rows(x, self.inputs),
            _OUTPUTS[output],
            None if table is None else np.ascontiguousarray(table),
            None if stream is None else _rows(stream, self.outputs),
            _rows(out, self.outputs),
            threads,
        )
        return out

    def _output(self, table: Any, stream: Any, clamped: bool) -> str:
        if self._scores and table is None and stream is None:
            return "int32"
        if not self._scores and self._int8 and stream is None:
            return "int8" if table is None else "int8_table"
        if not self._scores and not self._int8 and table is None:
            return "int16" if stream is None else "sum_int16" if clamped else "sum_int32"
        raise DtypeError(
            "a table after int8 outputs, or a stream added to int16 ones",
            "a layer of another width",
            "A layer's `limit` says which it has.",
        )


def _rows(array: NDArray[Any], columns: int) -> NDArray[Any]:
    """[rows, columns] with contiguous rows: a view where there is one."""
    rows = array.reshape(-1 if columns else int(np.prod(array.shape[:-1])), columns)
    fits = columns <= 1 or rows.strides[1] == rows.itemsize
    return rows if fits and rows.strides[0] >= 0 else np.ascontiguousarray(rows)
