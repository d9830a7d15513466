"""The logit scale of a head: a handful of candidates, chosen by the KL that the search then reaches.

Only distance from the row's maximum matters, so clipping logits far below it costs nothing while clipping the
maximum does. Two passes over the data: `LogitRange` finds each head's extremes, `ScaleCandidates` collects
statistics for every candidate scale against the float logits and keeps each head's best.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.calibration.rows import plain_logits, require_finite, row_batch
from hccs.calibration.searching import CalibrationWarning, search
from hccs.calibration.statistics import HeadStatistics, layers_and_heads, process_group
from hccs.errors import DataError, ShapeError
from hccs.numbers.arrays import numbers, positive
from hccs.ops import arguments
from hccs.ops.quantise import quantise

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LogitRange", "ScaleCandidates", "quantise"]

STEPS = 127
"""Max-abs maps the largest logit to this."""

FACTORS = (1.0, 0.9, 0.8, 1.4)
"""Candidate scales in units of max-abs, which comes first and so wins ties."""


class LogitRange:
    """The extremes of every head's float logits, streamed: the first pass of a collection.

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

    def merge(self, other: LogitRange) -> None:
        if self.shape != other.shape:
            raise DataError(f"ranges of shape {self.shape}", str(other.shape), "Merge parts of one model.")
        np.maximum(self.highest, other.highest, out=self.highest)
        np.minimum(self.lowest, other.lowest, out=self.lowest)

    def all_reduce(self, group: Any = None) -> None:
        """Widen to the extremes of every process of a torch.distributed group."""
        dist = process_group()
        boxes: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(boxes, (self.highest, self.lowest), group=group)
        self.highest = np.max([highest for highest, _ in boxes], axis=0)
        self.lowest = np.min([lowest for _, lowest in boxes], axis=0)

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
        return np.where(self.max_abs > 0, self.max_abs, float(STEPS)) / STEPS


class ScaleCandidates:
    """Statistics at every candidate scale at once: the second pass of a collection.

    The candidates are `factors` times the max-abs scale of each head. They sit in one `HeadStatistics` as if
    they were further heads, [layers, candidates * heads], which is saved, merged and resumed like any other.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, (1, 2, 300, 16)).astype(np.float32)
    >>> extremes = LogitRange(shape=(1, 2))
    >>> extremes.update(z)
    >>> candidates = ScaleCandidates(extremes, n=16)
    >>> candidates.update(z)
    >>> candidates.best().shape
    (1, 2)
    """

    def __init__(self, extremes: LogitRange, n: int, factors: Sequence[float] = FACTORS) -> None:
        chosen = positive("factors", factors).reshape(-1)
        layers, heads = extremes.shape
        scales = chosen[:, None] * extremes.scale[:, None]
        self.count = len(chosen)
        self.statistics = HeadStatistics(
            (layers, self.count * heads), n, scales.reshape(layers, -1), reference="float"
        )

    @classmethod
    def resume(cls, statistics: HeadStatistics, count: int) -> ScaleCandidates:
        self = cls.__new__(cls)
        self.count, self.statistics = count, statistics
        return self

    @property
    def heads(self) -> int:
        return self.statistics.shape[1] // self.count

    def update(self, z: Any, valid: Any = None, *, layer: int | None = None, weight: Any = None) -> None:
        """Add float logits; as `HeadStatistics.update`."""
        z, valid = plain_logits(z, valid)
        heads = 1 if layer is None else z.ndim - 3
        if z.ndim < 3 or z.shape[heads] != self.heads:
            raise ShapeError(
                f"logits of {self.heads} heads: [layers, heads, rows, k], or [..., heads, q, k] with `layer`",
                f"shape {z.shape}",
                "Pass the logits of all heads of a layer together.",
            )
        masking, valid = arguments.selection(valid, z.shape)
        if valid is not None:
            valid = self._for_each(valid, heads, z.ndim if masking == arguments.MASK else z.ndim - 1)
        if weight is not None:
            weight = self._for_each(numbers("weight", weight), heads, z.ndim - 1)
        self.statistics.update(self._for_each(z, heads, z.ndim), valid, layer=layer, weight=weight)

    def _for_each(self, array: NDArray[Any], axis: int, ndim: int) -> NDArray[Any]:
        """Once per candidate along the heads, unless it broadcasts over them anyway."""
        axis -= ndim - array.ndim
        if axis < 0 or array.ndim == 0 or array.shape[axis] == 1 < self.heads:
            return array
        return np.concatenate([array] * self.count, axis)

    def merge(self, other: ScaleCandidates) -> None:
        self.statistics.merge(other.statistics)

    def all_reduce(self, group: Any = None) -> None:
        """Give every process of a torch.distributed group the rows of all of them."""
        self.statistics.all_reduce(group)

    def kl(self) -> NDArray[np.float64]:
        """The KL against the float softmax that the search reaches, [candidates, layers, heads]."""
        with warnings.catch_warnings():
            # A head that never varies is told of when its own statistics are searched.
            warnings.simplefilter("ignore", CalibrationWarning)
            found = np.array([record.kl for record in search(self.statistics).heads])
        by_candidate: NDArray[np.float64] = found.reshape(-1, self.count, self.heads).swapaxes(0, 1)
        return by_candidate

    def best(self) -> HeadStatistics:
        """Each head's statistics at its best scale; of equals the earlier candidate."""
        layers, width = self.statistics.shape
        columns = self.kl().argmin(axis=0) * self.heads + np.arange(self.heads)
        return self.statistics.select(np.arange(layers)[:, None] * width + columns)
