"""Batches of logits as the native statistics take them: checked, contiguous, one head per block of rows.

`LogitRange` streams over the same batches for the extremes of every head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ShapeError
from hccs.numbers.arrays import array_of, integers, numbers, require_integer
from hccs.ops import arguments


@dataclass(frozen=True)
class RowBatch:
    """Logits [groups, rows, columns], the head of each group, and which columns of a row take part."""

    logits: NDArray[Any]
    head_of_group: NDArray[np.int32]
    lengths: NDArray[np.int32] | None
    mask: NDArray[np.bool_] | None
    weights: NDArray[np.int64] | None

    @property
    def chosen(self) -> NDArray[np.bool_] | None:
        if self.mask is not None:
            return self.mask.reshape(self.logits.shape)
        if self.lengths is not None:
            lengths = self.lengths.reshape(*self.logits.shape[:-1], 1)
            below: NDArray[np.bool_] = np.arange(self.logits.shape[-1]) < lengths
            return below
        return None


def plain_logits(logits: Any, valid: Any) -> tuple[NDArray[Any], Any]:
    """Logits as an array, and `valid` without what a masked array masks."""
    if arguments.is_tensor(logits):
        logits = logits.detach().cpu().numpy()
    if isinstance(logits, np.ma.MaskedArray):
        logits, valid = arguments.unmasked("x", logits, valid)
    return array_of("logits", logits), valid.detach().cpu().numpy() if arguments.is_tensor(valid) else valid


def row_batch(
    logits: Any,
    valid: Any,
    *,
    layer: int | None,
    weight: Any = None,
    weight_unit: int = 1,
    shape: tuple[int, int],
    n: int | None,
) -> RowBatch:
    """Check one batch of logits of `shape` = (layers, heads) and bring it into form."""
    logits, valid = plain_logits(logits, valid)
    head_of_group = _heads(logits.shape, layer, shape)
    rows, columns = logits.shape[-2:]
    if n is not None and columns > n:
        raise ShapeError(
            f"rows of at most n = {n} columns",
            f"{columns} columns",
            f"Make the statistics with n = {columns}.",
        )
    masking, valid = arguments.selection(valid, logits.shape)
    lengths = mask = None
    if masking == arguments.MASK:
        mask = np.ascontiguousarray(np.broadcast_to(valid, logits.shape)).reshape(-1, columns)
    elif masking == arguments.LENGTHS:
        lengths = np.broadcast_to(valid.astype(np.int32), logits.shape[:-1])
        lengths = np.ascontiguousarray(lengths).reshape(-1)
    return RowBatch(
        np.ascontiguousarray(logits).reshape(-1, rows, columns),
        head_of_group,
        lengths,
        mask,
        _weights(weight, logits.shape[:-1], weight_unit),
    )


def require_finite(batch: RowBatch) -> None:
    """Refuse NaN and infinite logits where they take part; masked positions may hold anything."""
    wrong = ~np.isfinite(batch.logits)
    if batch.chosen is not None:
        wrong &= batch.chosen
    if wrong.any():
        raise DataError(
            "finite logits at every valid position",
            f"{np.count_nonzero(wrong)} NaN or infinite of {wrong.size}",
            "Pass `valid` for padding instead of adding -inf, and check the model for overflow.",
        )


def layers_and_heads(shape: Any) -> tuple[int, int]:
    array = integers("shape", shape, "Count the layers and the heads of each.")
    if array.shape != (2,) or array.min() < 1:
        raise ShapeError("shape = (layers, heads), both >= 1", str(shape), "Count the heads to calibrate.")
    return int(array[0]), int(array[1])


class LogitRange:
    """The extremes of every head's float logits, streamed.

    >>> extremes = LogitRange(shape=(1, 2))
    >>> extremes.update(np.array([[[[1.0, -3.0]], [[0.5, 0.25]]]], dtype=np.float32))
    >>> extremes.max_abs.tolist()
    [[3.0, 0.5]]
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = layers_and_heads(shape)
        self.highest = np.full(self.shape, -np.inf)
        self.lowest = np.full(self.shape, np.inf)

    def update(self, z: Any, valid: Any = None, *, layer: int | None = None) -> None:
        """Add float logits; shapes and `valid` as in `HeadStatistics.update`."""
        batch = row_batch(z, valid, layer=layer, shape=self.shape, n=None)
        require_finite(batch)
        taking_part = batch.chosen
        for group, head in enumerate(batch.head_of_group.tolist()):
            logits = batch.logits[group]
            logits = logits[taking_part[group]] if taking_part is not None else logits
            if logits.size:
                self.highest.flat[head] = max(self.highest.flat[head], logits.max())
                self.lowest.flat[head] = min(self.lowest.flat[head], logits.min())

    @property
    def max_abs(self) -> NDArray[np.float64]:
        if not np.isfinite(self.highest).all():
            missing = ", ".join(f"layer {i} head {j}" for i, j in np.argwhere(~np.isfinite(self.highest))[:4])
            raise DataError("logits of every head", f"none of {missing}", "Update the range with all layers.")
        largest: NDArray[np.float64] = np.maximum(abs(self.highest), abs(self.lowest))
        return largest

    @property
    def scale(self) -> NDArray[np.float64]:
        """The max-abs scale: the largest magnitude becomes 127 steps."""
        # A head whose logits are all zero has no range; any scale represents it exactly.
        return np.where(self.max_abs > 0, self.max_abs, 127.0) / 127


def _heads(shape: tuple[int, ...], layer: int | None, grid: tuple[int, int]) -> NDArray[np.int32]:
    layers, heads = grid
    if layer is None:
        if len(shape) != 4 or shape[:2] != (layers, heads):
            raise ShapeError(
                f"logits [layers, heads, rows, k] = ({layers}, {heads}, rows, k)",
                f"shape {shape}",
                "For the logits of one layer, [..., heads, q, k], name it: layer=0.",
            )
        return np.arange(layers * heads, dtype=np.int32)
    layer = require_integer("layer", layer, 0, layers - 1, "Layers are counted from 0.")
    if len(shape) < 3 or shape[-3] != heads:
        raise ShapeError(
            f"logits [..., heads, q, k] with {heads} heads",
            f"shape {shape}",
            "Put the heads third from the end.",
        )
    blocks = np.broadcast_to(layer * heads + np.arange(heads, dtype=np.int32), shape[:-2])
    return np.ascontiguousarray(blocks).reshape(-1)


def _weights(weight: Any, rows: tuple[int, ...], unit: int) -> NDArray[np.int64] | None:
    if weight is None:
        return None if unit == 1 else np.full(int(np.prod(rows)), unit, np.int64)
    weight = numbers("weight", weight, "Give one number per row.")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise DataError(
            "finite weights >= 0", f"{weight.min()} to {weight.max()}", "A weight of 0 leaves a row out."
        )
    units = np.rint(np.asarray(weight, np.float64) * unit)
    if units.size and units.max() >= 2**40:
        raise DataError(
            "weights below 2^40 units", str(weight.max()), "Divide all weights by a common factor."
        )
    if not np.allclose(units, weight * unit, rtol=1e-3, atol=0):
        raise DataError(
            f"weights that multiples of 1/{unit} come within 0.1 % of",
            f"{weight[units != weight * unit].min()}",
            "Weights are counted exactly, in units: raise weight_unit, for example to 65536.",
        )
    if not arguments.broadcasts(units.shape, rows):
        raise ShapeError(
            f"weights that broadcast to x.shape[:-1] = {rows}",
            f"shape {units.shape}",
            "For [batch, heads, q, k] weights of sentences have shape [batch, 1, 1].",
        )
    return np.ascontiguousarray(np.broadcast_to(units.astype(np.int64), rows)).reshape(-1)
