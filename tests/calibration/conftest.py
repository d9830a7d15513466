"""Data and the slow, obvious formulas that the calibration tests judge by."""

from __future__ import annotations

import numpy as np
import pytest


def direct_kl(rows, scale, B, S, D, reference=None):
    """Mean over rows of KL(softmax || p_hat / 32767), written out (eq. 10); `rows` are 1-D int arrays."""
    total = 0.0
    for i, row in enumerate(rows):
        x = row.astype(np.int64)
        z = x * scale if reference is None else np.asarray(reference[i], np.float64)
        p = np.exp(z - z.max())
        p /= p.sum()
        s = B - S * np.minimum(x.max() - x, D)
        p_hat = s * (32767 // s.sum()) / 32767
        total += float((p[p > 0] * (np.log(p[p > 0]) - np.log(p_hat[p > 0]))).sum())
    return total / len(rows)


def direct_kls(rows, scale, triples):
    """`direct_kl` of many triples [count, 3] at once."""
    B, S, D = np.asarray(triples, np.int64).T[..., None]
    total = np.zeros(len(triples))
    for row in rows:
        x = row.astype(np.int64)
        p = np.exp((x - x.max()) * scale)
        p /= p.sum()
        s = B - S * np.minimum(x.max() - x, D)
        p_hat = s * (32767 // s.sum(-1, keepdims=True)) / 32767
        total += (p * (np.log(p) - np.log(p_hat))).sum(-1)
    return total / len(rows)


def random_logits(rng, shape, spread=None):
    """int8 logits whose spread varies from row to row, some rows constant."""
    spread = rng.uniform(0, 60, (*shape[:-1], 1)) if spread is None else spread
    return np.clip(np.rint(rng.normal(0, 1, shape) * spread), -128, 127).astype(np.int8)


@pytest.fixture
def rng():
    return np.random.default_rng(20261115)
