"""The choice of next tokens, by the native kernel where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.sampling import Sampling
from hccs.ops.dispatch import backend, is_compiled
from hccs.reference.sampling import sample as sample_one


def on_host(scores: Any) -> NDArray[np.int32]:
    """Scores as an array; a tensor on a GPU is copied."""
    return scores if isinstance(scores, np.ndarray) else np.asarray(scores.cpu())


def sample(
    scores: Any,
    sampling: Sampling,
    score_scale: float,
    seeds: Sequence[int],
    positions: Sequence[int],
    *,
    reference: bool = False,
) -> list[int]:
    """The token of each row of scores [rows, tokens], at its position of the text that its seed names.

    Of scores on a GPU that need no draw nothing but the tokens is copied.
    """
    if not isinstance(scores, np.ndarray):
        if not sampling.temperature:
            largest: list[int] = scores.argmax(-1).tolist()  # the first of equal ones
            return largest
        scores = on_host(scores)
    if is_compiled() and not reference:
        found: list[int] = backend("sampling", "cpu").sample(scores, sampling, score_scale, seeds, positions)
        return found
    each = zip(scores, seeds, positions, strict=True)
    return [sample_one(row, sampling, score_scale, seed, position) for row, seed, position in each]
