"""The choice of next tokens, by the native kernel where it is installed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.sampling import Sampling
from hccs.ops.dispatch import backend, is_compiled
from hccs.reference.sampling import sample as sample_one


def sample(
    scores: NDArray[np.int32],
    sampling: Sampling,
    score_scale: float,
    seeds: Sequence[int],
    positions: Sequence[int],
    *,
    reference: bool = False,
) -> list[int]:
    """The token of each row of scores [rows, tokens], at its position of the text that its seed names."""
    if is_compiled() and not reference:
        found: list[int] = backend("sampling", "cpu").sample(scores, sampling, score_scale, seeds, positions)
        return found
    each = zip(scores, seeds, positions, strict=True)
    return [sample_one(row, sampling, score_scale, seed, position) for row, seed, position in each]
