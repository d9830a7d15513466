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
        kinds = (self.words.dtype, self.positions.dtype, self.types.dtype)
        if len(widths) != 1 or kinds != (np.int8, np.int16, np.int16):
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
    def from_float(cls, words: Any, positions: Any, types: Any) -> tuple[EmbeddingParams, float]:
        """The integers of three float tables, and the value of one step of their sum."""
        W, P, T = (np.asarray(part, np.float64) for part in (words, positions, types))
        if not all(np.isfinite(part).all() for part in (W, P, T)):
            raise DataError(
                "finite embeddings", "NaN or infinity", "The model is damaged, or training diverged."
            )
        step = max(float(abs(W).max()), 1e-30) / 127
        rest = [float(abs(part).max()) / step for part in (P, T)]
        # The finest scale in which positions and types are int16 and the sum stays within 2^16.
        fits = [
            bits
            for bits in range(MAX_WORD_SHIFT, -1, -1)
            if max(rest) * 2**bits <= 32767 and (sum(rest) + 127) * 2**bits <= 2**16 - 2
        ]
        if not fits:
            raise ParameterError(
                "positions and types at most 256 times the words' steps",
                f"{max(rest):.4g}",
                "Scale the words up.",
            )
        shift = fits[0]
        scale = step / 2**shift
        small = [np.clip(np.rint(part / scale), -32767, 32767).astype(np.int16) for part in (P, T)]
        return cls(np.rint(W / step).astype(np.int8), *small, shift), scale
