"""How far rows of a surrogate's output are from softmax: six measures per row, summed up per head.

With p the float64 softmax of a row, q the surrogate's output for it, and both over the valid positions only:

| measure | of a row | 0 or 1 is best |
|---|---|---|
| `kl` | sum p log(p / q): missing mass costs, excess mass pays, so it may be negative | 0 |
| `kl_renormalised` | the same with q divided by its sum | 0 |
| `total_variation` | sum abs(p - q) / 2 | 0 |
| `top1` | chance that a largest q, ties drawn evenly, is a largest p | 1 |
| `rank_correlation` | Spearman's, ties share their mean rank; 0 where q is constant and p is not | 1 |
| `sum_error` | abs(sum q - 1) | 0 |
| `sparsity` | share of positions where q is exactly 0 | - |

KL needs q > 0: as in the methods' calibration a zero counts as half of the output's unit. Rows without a
valid position take no part; rows with a constant p have no rank correlation and are left out of its mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.fitting import FLOAT_UNIT

HEADINGS = {
    "kl": "KL",
    "kl_renormalised": "KL renorm.",
    "total_variation": "TV",
    "top1": "top-1",
    "rank_correlation": "rank corr.",
    "sum_error": "sum error",
    "sparsity": "zeros",
}
"""The measures, and the headings of their columns."""

MEASURES = tuple(HEADINGS)


def row_measures(
    p: NDArray[np.float64], q: NDArray[np.float64], valid: NDArray[np.bool_], unit: float | None = None
) -> dict[str, NDArray[np.float64]]:
    """Every measure of every row: arrays of shape p.shape[:-1], NaN where a row has none.

    `unit` is what one step of q is worth, None for floats, as in `hccs_lab.surrogates.Result`.

    >>> p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.5, 0.5, 0.0]])
    >>> found = row_measures(p, q, np.ones((1, 3), bool))
    >>> {name: float(found[name][0]) for name in ("total_variation", "top1", "sum_error")}
    {'total_variation': 0.25, 'top1': 0.5, 'sum_error': 0.0}
    """
    valid = np.broadcast_to(valid, p.shape)
    count = valid.sum(-1)
    q = np.where(valid, q, 0.0)
    kl, mass = _divergence(p, q, valid, (unit or FLOAT_UNIT) / 2)
    found = {
        "kl": kl,
        "kl_renormalised": kl + np.log(np.maximum(mass, np.finfo(np.float64).tiny)),
        "total_variation": np.abs(p - q).sum(-1) / 2,
        "top1": _top1(p, q, valid),
        "rank_correlation": _spearman(p, q, valid),
        "sum_error": np.abs(q.sum(-1) - 1),
        "sparsity": ((q == 0) & valid).sum(-1) / np.maximum(count, 1),
    }
    return {name: np.where(count > 0, value, np.nan) for name, value in found.items()}


def _divergence(
    p: NDArray[np.float64], q: NDArray[np.float64], valid: NDArray[np.bool_], floor: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """KL(p || q) with zeros of q counted as `floor`, and the mass of q so counted."""
    lifted = np.where(valid, np.where(q > 0, q, floor), 1.0)
    ratio = np.where(p > 0, p, 1.0) / lifted
    return (p * np.log(ratio)).sum(-1), np.where(valid, lifted, 0.0).sum(-1)


def _top1(p: NDArray[np.float64], q: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    best_p, best_q = (valid & (a == np.where(valid, a, -np.inf).max(-1, keepdims=True)) for a in (p, q))
    return (best_p & best_q).sum(-1) / np.maximum(best_q.sum(-1), 1)


def _spearman(
    p: NDArray[np.float64], q: NDArray[np.float64], valid: NDArray[np.bool_]
) -> NDArray[np.float64]:
    count = np.maximum(valid.sum(-1, keepdims=True), 1)
    ranks = [mean_ranks(a, valid) for a in (p, q)]
    a, b = (np.where(valid, r - (r * valid).sum(-1, keepdims=True) / count, 0.0) for r in ranks)
    spread_a, spread_b = (a * a).sum(-1), (b * b).sum(-1)
    both = np.sqrt(spread_a * spread_b)
    correlation = np.divide((a * b).sum(-1), both, out=np.zeros_like(both), where=both > 0)
    return np.where(spread_a > 0, correlation, np.nan)


def mean_ranks(a: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Ranks of the valid positions of each row from 0 on, equal values sharing the mean of theirs."""
    # Masked positions sort after all others, so that the ranks of the rest begin at 0.
    keys = np.where(valid, a, np.inf)
    order = np.argsort(keys, axis=-1, kind="stable")
    ordered = np.take_along_axis(keys, order, -1)
    place = np.broadcast_to(np.arange(a.shape[-1]), a.shape)
    begins = np.ones(a.shape, bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = np.ones(a.shape, bool)
    ends[..., :-1] = begins[..., 1:]
    first = np.maximum.accumulate(np.where(begins, place, 0), -1)
    last = np.minimum.accumulate(np.where(ends, place, a.shape[-1])[..., ::-1], -1)[..., ::-1]
    ranks = np.empty(a.shape)
    np.put_along_axis(ranks, order, (first + last) / 2, -1)
    return ranks


class FidelityCounter:
    """Adds up the measures of rows, piece by piece, for [layers, heads]."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._sums = {name: np.zeros(shape) for name in MEASURES}
        self._rows = {name: np.zeros(shape) for name in MEASURES}

    def add(self, layer: int, found: dict[str, NDArray[np.float64]]) -> None:
        """Rows [heads, rows] of one layer, as `row_measures` gives them."""
        for name, values in found.items():
            self._sums[name][layer] += np.nansum(values, -1)
            self._rows[name][layer] += np.isfinite(values).sum(-1)

    def result(self) -> dict[str, Any]:
        """The mean of every measure over rows, then over heads, each of which counts alike; and by head."""
        with np.errstate(invalid="ignore"):
            heads = {name: self._sums[name] / self._rows[name] for name in MEASURES}
        overall = {name: float(np.nanmean(values)) for name, values in heads.items()}
        return {**overall, "heads": {name: np.round(values, 8).tolist() for name, values in heads.items()}}
