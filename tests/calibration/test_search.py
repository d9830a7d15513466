from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccs
from hccs.calibration import (
    CalibrationWarning,
    HeadStatistics,
    calibrate,
    fidelity,
    search,
)
from hccs.calibration.searching import TIE, objectives
from hccs.errors import DataError, ParameterError
from hccs.numbers.region import Region
from hccs.reference.softmax import softmax as reference_softmax
from tests.calibration.conftest import direct_kl, direct_kls, random_logits


def statistics(x, lengths=None, n=None, scale=0.08, **options):
    stats = HeadStatistics(x.shape[:2], n or x.shape[-1], scale, **options)
    stats.update(x, lengths)
    return stats


def preferred(triples, kl):
    """The first triple, by D, then S, then B, within the tie of the least; and the best of the others."""
    triples = np.asarray(triples)
    order = np.lexsort(triples.T)  # its last key, D, comes first
    triples, kl = triples[order], np.asarray(kl)[order]
    best = int(np.argmax(kl <= kl.min() + TIE))
    others = np.delete(kl, best)
    second = int(np.argmax(others <= others.min() + TIE))
    return tuple(triples[best].tolist()), tuple(np.delete(triples, best, 0)[second].tolist())


def constant(rng, rows, k):
    return np.full((1, 1, rows, k), 3, np.int8)


def two_levels(rng, rows, k):
    return np.where(rng.random((1, 1, rows, k)) < 0.3, 0, -9).astype(np.int8)


def focused(rng, rows, k):
    x = np.full((1, 1, rows, k), -128, np.int8)
    x[..., 0] = 127
    return x


def spread(rng, rows, k):
    return random_logits(rng, (1, 1, rows, k))


def narrow(rng, rows, k):
    return random_logits(rng, (1, 1, rows, k), spread=1.5)


@pytest.mark.filterwarnings("ignore::hccs.calibration.CalibrationWarning")
@pytest.mark.parametrize("data", [constant, two_levels, focused, spread, narrow], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [300, 512, 1000, 16000])
def test_search_finds_the_minimum_of_the_direct_formula_over_every_triple(rng, data, n):
    x = data(rng, 12, 10)
    lengths = rng.integers(1, 11, (1, 1, 12))
    rows = [row[:c] for row, c in zip(x[0, 0], lengths[0, 0], strict=True)]
    triples = list(Region(n))
    kl = direct_kls(rows, 0.08, triples)
    best, second = preferred(triples, kl)
    record = search(statistics(x, lengths, n)).heads[0]
    assert tuple(record.params.packed) == best
    assert tuple(record.runner_up.packed) == second
    assert record.kl == pytest.approx(min(kl), abs=1e-10)


@pytest.mark.filterwarnings("ignore::hccs.calibration.CalibrationWarning")
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(100, 900), scale=st.floats(0.003, 3.0))
def test_search_finds_the_minimum_on_anything(seed, n, scale):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 40))
    x = random_logits(rng, (1, 1, int(rng.integers(1, 1500)), k), spread=float(rng.uniform(0, 80)))
    lengths = rng.integers(1, k + 1, x.shape[:3]) if rng.random() < 0.5 else None
    stats = statistics(x, lengths, n, scale)
    triples = list(Region(n))
    best, second = preferred(triples, objectives(stats, [0], triples))
    record = search(stats).heads[0]
    assert tuple(record.params.packed) == best
    assert tuple(record.runner_up.packed) == second


@pytest.mark.parametrize("counted", [False, True], ids=["rows kept", "rows counted"])
def test_search_finds_the_minimum_over_the_whole_region_of_64(rng, counted):
    rows = 3000 if counted else 400
    x = random_logits(rng, (1, 1, rows, 64))
    lengths = rng.integers(60, 65, (1, 1, rows)) if counted else rng.integers(1, 65, (1, 1, rows))
    stats = statistics(x, lengths)
    triples = list(Region(64))
    assert len(triples) == 641_951
    best, second = preferred(triples, objectives(stats, [0], triples))
    record = search(stats).heads[0]
    assert tuple(record.params.packed) == best
    assert tuple(record.runner_up.packed) == second


@pytest.mark.filterwarnings("ignore::hccs.calibration.CalibrationWarning")
def test_ties_break_to_the_smallest_D_then_S_then_B(rng):
    # Nothing lies beyond distance 9: every D >= 9 is equal, and the smallest is taken.
    assert search(statistics(two_levels(rng, 50, 20))).heads[0].params.D <= 9
    # Nothing varies: every slope is equal, so D = 1 and S = 0.
    assert tuple(search(statistics(constant(rng, 50, 20))).heads[0].params.packed[1:]) == (0, 1)


def test_result_does_not_depend_on_threads_order_or_split(rng):
    x = random_logits(rng, (2, 2, 200, 30))
    whole = search(statistics(x), threads=1)
    parts = HeadStatistics((2, 2), 30, 0.08)
    for chunk in np.array_split(rng.permutation(200), 3):
        parts.update(x[:, :, chunk])
    assert search(parts, threads=3).heads == whole.heads


def test_record_says_what_the_reference_computes(rng):
    x = random_logits(rng, (1, 1, 80, 33))
    lengths = rng.integers(1, 34, (1, 1, 80))
    record = search(statistics(x, lengths)).heads[0]
    p_hat = reference_softmax(x, record.params, "i16_div", lengths) / 32767
    renormalised = entropy = 0.0
    for row, q, c in zip(x[0, 0], p_hat[0, 0], lengths[0, 0], strict=True):
        p = np.exp(row[:c] * 0.08 - row[:c].max() * 0.08)
        p /= p.sum()
        renormalised += float((p * np.log(p / (q[:c] / q.sum()))).sum()) / 80
        entropy -= float((p * np.log(p)).sum()) / 80
    assert record.kl_renormalised == pytest.approx(renormalised, abs=1e-10)
    assert record.entropy == pytest.approx(entropy, abs=1e-10)
    assert record.mass_deficit == pytest.approx(1 - p_hat.sum(-1).mean(), abs=1e-12)
    assert record.kl < record.runner_up_kl
    assert record.rows == 80


def test_finer_granularity_is_never_worse(rng):
    x = np.stack([random_logits(rng, (3, 300, 24), spread=s) for s in (4.0, 20.0)])
    stats = statistics(x, scale=np.array([[0.1, 0.2, 0.3], [0.05, 0.1, 0.2]]))
    found = {g: search(stats, granularity=g) for g in ("head", "layer", "global")}
    assert found["head"].kl < found["layer"].kl < found["global"].kl
    assert len(np.unique(found["layer"].table.B, axis=1)[0]) == 1
    assert np.array_equal(found["global"].table.scale, stats.scale)
    layer = objectives(stats, [0, 1, 2], [found["layer"].table.head(0, 0).packed])[0]
    assert layer == pytest.approx(np.mean([r.kl for r in found["layer"].heads[:3]]), abs=1e-10)


def test_weights_count_rows_as_often(rng):
    x = random_logits(rng, (1, 1, 90, 20))
    weight = rng.integers(0, 4, (1, 1, 90))
    weighted = HeadStatistics((1, 1), 20, 0.08)
    weighted.update(x, weight=weight)
    repeated = statistics(np.repeat(x, weight[0, 0], axis=2))
    assert search(weighted).heads[0].kl == pytest.approx(search(repeated).heads[0].kl, abs=1e-12)
    assert calibrate(weighted) == calibrate(repeated)


def test_fractional_weights_need_a_unit(rng):
    x = random_logits(rng, (1, 1, 40, 20))
    weight = rng.choice([0.5, 0.25, 1.0], (1, 1, 40))
    with pytest.raises(DataError, match="weight_unit"):
        HeadStatistics((1, 1), 20, 0.08).update(x, weight=weight)
    quarters, units = HeadStatistics((1, 1), 20, 0.08, weight_unit=4), HeadStatistics((1, 1), 20, 0.08)
    quarters.update(x, weight=weight)
    units.update(x, weight=weight * 4)
    assert search(quarters).heads[0].kl == search(units).heads[0].kl


def test_exact_search_is_never_worse_than_a_scan_of_a_grid(rng):
    stats = statistics(random_logits(rng, (2, 3, 200, 64)))
    grid = list(Region(64))[::397]
    for head, record in enumerate(search(stats).heads):
        assert record.kl <= objectives(stats, [head], grid).min() + TIE


def test_table_serves_longer_rows_than_the_data(rng):
    stats = statistics(random_logits(rng, (1, 1, 60, 20)))
    table = hccs.calibrate(stats, n=128)
    assert table.n == 128
    assert tuple(table.head(0, 0).packed) in Region(128)


def test_fidelity_on_other_rows_is_the_direct_formula(rng):
    table = calibrate(statistics(random_logits(rng, (1, 2, 200, 25))))
    other = random_logits(rng, (1, 2, 50, 25))
    kl = fidelity(statistics(other), table)[0, 1, 0]
    assert kl == pytest.approx(
        direct_kl(list(other[0, 1]), 0.08, *table.head(0, 1).packed.tolist()), abs=1e-10
    )


def test_heads_that_never_vary_are_named(rng):
    x = random_logits(rng, (1, 2, 30, 16))
    x[0, 1] = 5
    with pytest.warns(CalibrationWarning, match="layer 0 head 1 never vary"):
        search(statistics(x))


def test_n_without_a_slope_is_told(rng):
    stats = statistics(random_logits(rng, (1, 1, 30, 16)))
    with pytest.warns(CalibrationWarning, match="n = 20000 leaves no admissible slope"):
        table = calibrate(stats, n=20000)
    assert table.S.item() == 0
    with pytest.raises(ParameterError, match="at most n = 32767"):
        calibrate(stats, n=40000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": "row"}, "granularity to be one of head, layer, global"),
        ({"objective": "l2"}, "objective to be one of kl_i16, output"),
        ({"threads": 0}, "threads to be an integer"),
        ({"n": 8}, "n >= 16, the longest row of the statistics"),
    ],
)
def test_wrong_options_are_refused(rng, options, message):
    with pytest.raises(ParameterError, match=message):
        search(statistics(random_logits(rng, (1, 1, 5, 16))), **options)


def test_heads_without_rows_are_refused_by_name(rng):
    with pytest.raises(DataError, match="layer 0 head 0"):
        search(HeadStatistics((1, 1), 16))
    stats = HeadStatistics((2, 1), 16)
    stats.update(random_logits(rng, (1, 5, 16)), layer=0)
    stats.update(random_logits(rng, (1, 5, 16)), np.zeros((1, 5, 16), bool), layer=1)
    with pytest.raises(DataError, match="layer 1 head 0"):
        search(stats)


def test_the_objective_of_what_no_row_admits_is_refused(rng):
    stats, region = statistics(random_logits(rng, (1, 1, 5, 64))), Region(64)
    corners = np.array([(B, S, D) for D in (0, 1, 127, 128) for S in (-1, 0, 3, 510) for B in range(-2, 514)])
    inside = [tuple(triple) in region for triple in corners.tolist()]
    assert 0 < sum(inside) < len(inside)
    assert len(objectives(stats, [0], corners[inside])) == sum(inside)
    for triple in corners[~np.array(inside)][::97].tolist():
        with pytest.raises(ParameterError, match="admissible for n = 64"):
            objectives(stats, [0], [*corners[inside][:3].tolist(), triple])


def test_table_of_another_model_is_refused(rng):
    table = calibrate(statistics(random_logits(rng, (1, 2, 20, 8))))
    with pytest.raises(ParameterError, match=r"shape \(1, 1\)"):
        fidelity(statistics(random_logits(rng, (1, 1, 20, 8))), table)
