"""The choice of next tokens by native code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hccs.backends.cpu import _native
from hccs.numbers.sampling import Sampling, powers


def sample(
    scores: NDArray[np.int32],
    sampling: Sampling,
    score_scale: float,
    seeds: Sequence[int],
    positions: Sequence[int],
) -> list[int]:
    if not sampling.temperature:
        largest: list[int] = scores.argmax(-1).tolist()
        return largest
    chosen = np.empty(len(scores), np.int64)
    _native.sample(
        scores,
        powers(),
        *sampling.factor(score_scale),
        min(sampling.top_k or 0, scores.shape[1]),
        sampling.share,
        np.array(seeds, np.uint64),
        np.array(positions, np.uint64),
        chosen,
    )
    found: list[int] = chosen.tolist()
    return found
