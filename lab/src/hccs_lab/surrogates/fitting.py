"""Fitting a method's parameters: the divergence from softmax per head, and a search over candidates.

The measure is the mean over rows of

    sum_i p_i log(p_i / q_i) + sum_i q_i - 1,    p = softmax(x * scale),  q = the method's probabilities

which is KL(p || q) for a method that sums to one, and for one that does not charges mass in excess as much as
mass that is missing (a plain KL would reward any q that is too large). An output of exactly zero, for which
KL is infinite, counts as half of the method's unit, in both terms; where the output has none, as half of
2^-16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError
from hccs_lab.surrogates.rows import maximum
from hccs_lab.surrogates.surrogate import Result

FLOAT_UNIT = 2.0**-16


def float_softmax(x: NDArray[Any], scale: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """softmax(x * scale) over valid columns; `scale` broadcasts against x.shape[:-2]."""
    z = np.where(valid, x * np.asarray(scale, np.float64)[..., None, None], -np.inf)
    e = np.exp(z - maximum(z, valid))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def per_head(rows: NDArray[np.float64], valid: NDArray[np.bool_], heads: int) -> NDArray[np.float64]:
    """The mean of a number per row [..., q] over the rows that have a valid column, for each head.

    The heads are the last `heads` axes before q.
    """
    taking_part = valid.any(-1)
    others = (*range(rows.ndim - 1 - heads), rows.ndim - 1)
    count = taking_part.sum(others)
    if (count == 0).any():
        raise DataError(
            "rows with a valid column for every head", "a head without any", "Collect logits of all heads."
        )
    mean: NDArray[np.float64] = np.where(taking_part, rows, 0).sum(others) / count
    return mean


def divergence(
    result: Result, p: NDArray[np.float64], valid: NDArray[np.bool_], heads: int
) -> NDArray[np.float64]:
    """The measure above of every head, for softmax probabilities `p`."""
    half_unit = (result.unit or FLOAT_UNIT) / 2
    q = np.where(result.probabilities == 0, half_unit, result.probabilities)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / q), 0) + q
    return per_head(np.where(valid, terms, 0).sum(-1) - 1, valid, heads)


def best_candidate(
    evaluate: Callable[[NDArray[np.float64]], Result],
    candidates: NDArray[np.float64],
    x: NDArray[np.int8],
    scale: NDArray[np.float64],
    valid: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """The candidate of least divergence for every head, the first among equals.

    `candidates` [count], the same for all heads, or [count, *heads]; `evaluate` runs the method with one
    candidate per head.
    """
    if candidates.ndim == 1:
        candidates = candidates.reshape(-1, *(1,) * scale.ndim)
    candidates = np.broadcast_to(candidates, (len(candidates), *scale.shape))
    p = float_softmax(x, scale, valid)
    found = np.stack([divergence(evaluate(row), p, valid, scale.ndim) for row in candidates])
    chosen = found.argmin(0)
    best: NDArray[np.float64] = np.take_along_axis(candidates, chosen[None], 0)[0]
    return best
