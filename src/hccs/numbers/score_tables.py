"""`ScoreTable`: the scores of a head by distance, for executors that look them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hccs.errors import ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import MAX_DISTANCE, WIDE_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

DISTANCES = MAX_DISTANCE + 1
"""Entries of a table: distances 0 to 127; all beyond have the last one's score."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores int16 [heads, 128] that fall with the distance from the row's maximum, in the place of theta.

    Rows are summed in 24 bits, as those of two lines are.

    >>> table = ScoreTable.of_exponentials(np.array([0.5]), largest=1023)
    >>> table.packed[0, :6].tolist()
    [1023, 620, 376, 228, 138, 84]
    """

    packed: NDArray[np.int16]
    wide: ClassVar[bool] = True

    def __post_init__(self) -> None:
        packed = self.packed
        if packed.dtype != np.int16 or packed.ndim != 2 or packed.shape[1] != DISTANCES or not len(packed):
            raise ShapeError(
                f"scores int16 [heads, {DISTANCES}]",
                f"{packed.dtype} of shape {packed.shape}",
                "One row of scores per head, by distance.",
            )
        if (packed[:, 0] < 1).any() or (packed < 0).any() or (np.diff(packed, axis=1) > 0).any():
            raise ParameterError(
                "scores that start above 0 and never rise", "others", "Use ScoreTable.of_exponentials."
            )

    @classmethod
    def of_exponentials(cls, scale: Any, largest: int) -> ScoreTable:
        """rhe(largest * exp(-d * scale)) of every head's logit scale: softmax itself, as far as steps go."""
        d = np.arange(DISTANCES)
        real = largest * np.exp(-np.multiply.outer(np.asarray(scale, np.float64), d))
        return cls(np.rint(real).astype(np.int16))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packed.shape[:-1]

    @property
    def max_score(self) -> int:
        return int(self.packed.max())

    @property
    def max_columns(self) -> int:
        """The longest row whose sum surely fits 24 bits."""
        return WIDE_MAX // self.max_score

    def require_columns(self, columns: int) -> None:
        """Refuse rows so long that their sum could leave 24 bits."""
        if columns * self.max_score > WIDE_MAX:
            raise ParameterError(
                f"rows of at most {self.max_columns} columns", str(columns), "Use a smaller largest score."
            )

    def scores(self, x: NDArray[np.int8], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Scores of int8 logits [..., heads, rows, columns]; 0 where the mask is False."""
        wide = x.astype(np.int64)
        m = np.where(mask, wide, -128).max(-1, keepdims=True, initial=-128)
        distance = np.clip(m - wide, 0, MAX_DISTANCE)
        found = self.packed[np.arange(len(self.packed))[:, None, None], distance]
        return np.where(mask, found, 0).astype(np.int64)


def theta_of(packed: NDArray[Any]) -> HeadParams | ScoreTable:
    """What an array of parameters stands for: int16 scores by distance, or theta of lines."""
    return ScoreTable(packed) if packed.dtype == np.int16 else HeadParams.from_packed(packed)
