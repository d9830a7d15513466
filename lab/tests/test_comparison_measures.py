import doctest
import itertools
import math

import numpy as np
import pytest

pytest.importorskip("torch")

from hccs_lab.compare import entries, measures
from hccs_lab.compare.measures import MEASURES, FidelityCounter, mean_ranks, row_measures


def naive(p, q, valid, unit):
    """Every measure of one row, from its definition, over the valid positions only."""
    pairs = [(a, b) for a, b, v in zip(p, q, valid, strict=True) if v]
    if not pairs:
        return dict.fromkeys(MEASURES, math.nan)
    lifted = [b if b > 0 else (unit or 2.0**-16) / 2 for _, b in pairs]
    kl = sum(a * math.log(a / b) for (a, _), b in zip(pairs, lifted, strict=True) if a > 0)
    mass = sum(lifted)
    again = sum(a * math.log(a * mass / b) for (a, _), b in zip(pairs, lifted, strict=True) if a > 0)
    top_p, top_q = max(a for a, _ in pairs), max(b for _, b in pairs)
    ties = [a == top_p for a, b in pairs if b == top_q]
    return {
        "kl": kl,
        "kl_renormalised": again,
        "total_variation": sum(abs(a - b) for a, b in pairs) / 2,
        "top1": sum(ties) / len(ties),
        "rank_correlation": naive_spearman(*zip(*pairs, strict=True)),
        "sum_error": abs(sum(b for _, b in pairs) - 1),
        "sparsity": sum(b == 0 for _, b in pairs) / len(pairs),
    }


def naive_spearman(p, q):
    def ranks(values):
        return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]

    a, b = (np.array(ranks(values)) for values in (p, q))
    if len(set(p)) == 1:
        return math.nan
    return 0.0 if len(set(q)) == 1 else np.corrcoef(a, b)[0, 1]


def random_rows(rng, rows, k):
    """Softmax rows with ties and masks, and outputs with ties, zeros and any sum."""
    x = rng.integers(-6, 6, (rows, k))
    valid = rng.random((rows, k)) < 0.7
    valid[0], valid[1] = False, True
    x[2] = 3
    e = np.where(valid, np.exp(0.5 * x), 0)
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    q = np.round(np.abs(p + rng.normal(0, 0.05, p.shape)), 1)
    q[3] = 0.25
    return p, q, valid


@pytest.mark.parametrize("unit", [None, 1 / 255])
def test_every_measure_equals_its_definition(unit):
    rng = np.random.default_rng(5)
    p, q, valid = random_rows(rng, 60, 9)
    garbage = np.where(valid, q, rng.normal(0, 9, q.shape))  # what is masked must not matter
    found = row_measures(p, garbage, valid, unit)
    assert set(found) == set(MEASURES)
    for row in range(len(p)):
        wanted = naive(p[row], q[row], valid[row], unit)
        for name in MEASURES:
            np.testing.assert_allclose(found[name][row], wanted[name], atol=1e-12, err_msg=f"{name}, {row}")


@pytest.mark.parametrize("module", [measures, entries])
def test_examples_in_docstrings_run_as_written(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 0 and failed == 0


def test_softmax_itself_is_perfect():
    p, _, valid = random_rows(np.random.default_rng(1), 40, 12)
    found = row_measures(p, p, valid)
    best = {"top1": 1, "rank_correlation": 1, "sparsity": 0}
    for name in MEASURES:
        np.testing.assert_allclose(found[name][1], best.get(name, 0), atol=1e-12)


def test_padding_changes_no_measure():
    p, q, valid = random_rows(np.random.default_rng(2), 20, 7)
    wide = [np.pad(a, ((0, 0), (0, 5))) for a in (p, q, valid)]
    narrow, padded = row_measures(p, q, valid), row_measures(*wide)
    for name in MEASURES:
        np.testing.assert_allclose(padded[name], narrow[name], atol=1e-12)


def test_ranks_of_every_small_row():
    rows = np.array(list(itertools.product(range(3), repeat=4)), float)
    valid = np.ones(rows.shape, bool)
    wanted = [[sum(w < v for w in r) + (sum(w == v for w in r) - 1) / 2 for v in r] for r in rows.tolist()]
    np.testing.assert_array_equal(mean_ranks(rows, valid), wanted)


def test_means_over_pieces_equal_means_over_all():
    rng = np.random.default_rng(3)
    layers = [random_rows(rng, 40, 9) for _ in range(4)]  # two layers of two heads, 40 rows each
    counter = FidelityCounter((2, 2))
    for layer, pair in enumerate((layers[:2], layers[2:])):
        p, q, valid = (np.stack(arrays) for arrays in zip(*pair, strict=True))
        found = row_measures(p, q, valid)
        for part in (slice(0, 13), slice(13, 40)):
            counter.add(layer, {name: values[:, part] for name, values in found.items()})
    result = counter.result()
    for (layer, head), rows in zip(np.ndindex(2, 2), layers, strict=True):
        found = row_measures(*rows)
        for name in MEASURES:
            expected = np.nanmean(found[name])
            np.testing.assert_allclose(result["heads"][name][layer][head], expected, atol=1e-8)
    means = {name: float(np.mean(values)) for name, values in result.pop("heads").items()}
    assert result == pytest.approx(means, abs=1e-8) and [*result] == [*MEASURES]
