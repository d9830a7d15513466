"""Embeddings in integers: three look-ups and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.embeddings import EmbeddingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray


def embedding(
    tokens: NDArray[Any], positions: NDArray[Any], types: NDArray[Any], params: EmbeddingParams
) -> NDArray[np.int32]:
    """(words[token] << shift) + positions[position] + types[type], int32."""
    words = params.words[tokens].astype(np.int32) << params.shift
    total: NDArray[np.int32] = words + params.positions[positions] + params.types[types]
    return total
