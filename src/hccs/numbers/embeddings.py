"""`EmbeddingParams`: words in int8, positions and types in int16, summed in one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_WORD_SHIFT = 7
"""Words of 127 steps then fill half of int16."""


@dataclass(frozen=True, eq=False)
class EmbeddingParams:
    """v = (words[token] << shift) + positions[position] + types[type]; |v| <= 2^16 for every choice."""

    words: NDArray[np.int8]
    positions: NDArray[np.int16]
    types: NDArray[np.int16]
    shift: int

    def __post_init__(self) -> None:
        widths = {part.shape[1] for part in (self.words, self.positions, self.types)}
        kinds = tuple(part.dtype.name for part in (self.words, self.positions, self.types))
        if len(widths) != 1 or kinds != ("int8", "int16", "int16"):
            raise ShapeError(
                "int8 words, int16 positions and types of one width", f"{kinds}, {widths}", "See from_float."
            )
        if not 0 <= self.shift <= MAX_WORD_SHIFT:
            raise ParameterError(f"a shift of 0 to {MAX_WORD_SHIFT}", str(self.shift), "See from_float.")
        reach = (127 << self.shift) + sum(
            int(abs(p.astype(np.int64)).max()) for p in (self.positions, self.types)
        )
        if reach > 2**16:
            raise ParameterError("sums of magnitude up to 2^16", str(reach), "See from_float.")

    @classmethod
    def from_float(cls, words: Any, positions: Any, types: Any, step: float, shift: int) -> EmbeddingParams:
        """The integers of three float tables; `step` is the value of one step of a word."""
        W, P, T = (np.asarray(part, np.float64) for part in (words, positions, types))
        if not all(np.isfinite(part).all() for part in (W, P, T)):
            raise DataError(
                "finite embeddings", "NaN or infinity", "The model is damaged, or training diverged."
            )
        fine = step / 2**shift
        positions, types = (np.clip(np.rint(part / fine), -32767, 32767).astype(np.int16) for part in (P, T))
        return cls(np.clip(np.rint(W / step), -127, 127).astype(np.int8), positions, types, shift)


def word_step(words: Any, positions: Any, types: Any) -> tuple[float, int]:
    """The value of one step of a word, and by how many bits positions and types are finer.

    As fine as positions and types in int16, and sums within 2^16, allow.
    """
    W, P, T = (float(abs(np.asarray(part)).max()) for part in (words, positions, types))
    step = max(W, 1e-30) / 127
    for shift in range(MAX_WORD_SHIFT, -1, -1):
        reach = [part / step * 2**shift for part in (P, T)]
        if max(reach) <= 32767 and sum(reach) + (127 << shift) <= 2**16 - 2:
            return step, shift
    raise ParameterError(
        "positions and types at most 256 times the words' steps",
        f"{max(P, T) / step:.4g}",
        "Scale the words up.",
    )
