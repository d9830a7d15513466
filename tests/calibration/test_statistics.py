from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccs.calibration import HeadStatistics
from hccs.calibration.search import objectives
from hccs.spec import Region

from .conftest import direct_kl, random_logits


def random_triples(rng, n, count):
    region = Region(n)
    triples = []
    for _ in range(count):
        D = int(rng.integers(1, 128))
        S = int(rng.integers(0, region.max_slope(D) + 1))
        triples.append((int(rng.integers(region.min_base(S, D), region.max_base + 1)), S, D))
    return sorted(triples, key=lambda t: t[::-1])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from([1, 2, 7, 31, 64, 100, 200]))
def test_objective_equals_the_direct_formula(seed, n):
    rng = np.random.default_rng(seed)
    rows, scale = int(rng.integers(1, 60)), float(rng.uniform(0.005, 1.0))
    x = random_logits(rng, (1, 1, rows, n))
    mask = rng.random((1, 1, rows, n)) < rng.uniform(0.2, 1)
    stats = HeadStatistics((1, 1), n, scale)
    stats.update(x, mask)
    kept = [row[m] for row, m in zip(x[0, 0], mask[0, 0], strict=True) if m.any()]
    if not kept:
        return
    triples = random_triples(rng, n, 12)
    expected = [direct_kl(kept, scale, *triple) for triple in triples]
    np.testing.assert_allclose(objectives(stats, [0], triples), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [300, 9000], ids=["rows kept", "rows counted"])
def test_order_and_split_change_no_bit(rng, rows):
    x = random_logits(rng, (2, 3, rows, 20))
    lengths = rng.integers(0, 21, (2, 3, rows)) if rows < 1000 else rng.integers(19, 21, (2, 3, rows))
    whole = HeadStatistics((2, 3), 20, 0.07)
    whole.update(x, lengths)

    order = rng.permutation(rows)
    parts = [HeadStatistics((2, 3), 20, 0.07) for _ in range(3)]
    for i, chunk in enumerate(np.array_split(order, 7)):
        for layer in range(2):
            parts[i % 3].update(x[layer, :, chunk].swapaxes(0, 1), lengths[layer][:, chunk], layer=layer)
    parts[0].merge(parts[2])
    parts[1].merge(parts[0])
    assert parts[1] == whole
    assert parts[1].rows.tolist() == (lengths > 0).sum(-1).tolist()
