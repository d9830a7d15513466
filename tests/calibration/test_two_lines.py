"""Two lines: the search against brute force, the objective against the formula, the sample as defined."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hccs
from hccs.calibration import HeadStatistics, fidelity, search
from hccs.calibration.state import FORMAT, restored, state_of
from hccs.calibration.two_lines import deployed, objectives
from hccs.errors import FileError, ParameterError
from hccs.reference.softmax import softmax as reference_softmax
from tests.calibration.conftest import random_logits


def gathered(x, scale=0.1, n=None, **options):
    stats = HeadStatistics(x.shape[:2], n or x.shape[-1], scale, **options)
    stats.update(x)
    return stats


def direct_kl(rows, scale, six, weights=None):
    """Mean over rows of KL(softmax || s / Z), written out."""
    B, S, D, S2, D2, f = six
    total = 0.0
    for row, weight in zip(rows, weights if weights is not None else np.ones(len(rows)), strict=True):
        d = int(row.max()) - row.astype(int)
        p = np.exp(-d * scale)
        p /= p.sum()
        s = (B - S * np.minimum(d, D) - S2 * np.minimum(d, D2)) >> f
        total += weight * float((p * (np.log(p) - np.log(s / s.sum()))).sum())
    return total / (len(rows) if weights is None else np.sum(weights))


def drawn_lines(rng, count):
    found = []
    while len(found) < count:
        D = int(rng.integers(1, 128))
        D2, S, S2, f = (int(rng.integers(low, high)) for low, high in ((1, D + 1), (0, 12), (0, 60), (0, 4)))
        top = (256 << f) - 1 if f else 2047
        if S * D + S2 * D2 + (1 << f) <= top:
            found.append((int(rng.integers(S * D + S2 * D2 + (1 << f), top + 1)), S, D, S2, D2, f))
    return found


def test_objective_is_the_formula(rng):
    x = random_logits(rng, (1, 2, 80, 24))
    stats = gathered(x)
    thetas = drawn_lines(rng, 40)
    for head in range(2):
        direct = [direct_kl(x[0, head], 0.1, theta) for theta in thetas]
        np.testing.assert_allclose(objectives(stats, [head], thetas), direct, rtol=0, atol=1e-12)
    both = [direct_kl(x.reshape(-1, 24), 0.1, theta) for theta in thetas]
    np.testing.assert_allclose(objectives(stats, [0, 1], thetas), both, rtol=0, atol=1e-12)


def test_objective_counts_weights_and_float_logits(rng):
    z = rng.normal(0, 2, (1, 1, 60, 12)).astype(np.float32)
    weights = rng.integers(1, 5, 60)
    stats = HeadStatistics((1, 1), 12, 0.05, reference="float")
    stats.update(z, weight=weights[None, None])
    x = np.clip(np.rint(z / 0.05), -128, 127).astype(int)[0, 0]
    for six in drawn_lines(rng, 10):
        B, S, D, S2, D2, f = six
        d = x.max(-1, keepdims=True) - x
        s = (B - S * np.minimum(d, D) - S2 * np.minimum(d, D2)) >> f
        p = np.exp(z[0, 0].astype(float))
        p /= p.sum(-1, keepdims=True)
        kl = (p * (np.log(p) - np.log(s / s.sum(-1, keepdims=True)))).sum(-1)
        expected = float((kl * weights).sum() / weights.sum())
        assert objectives(stats, [0], [six])[0] == pytest.approx(expected, abs=1e-9)


def direct_output_error(rows, scale, six):
    """Mean over rows of sum (p - s / Z)^2, written out."""
    B, S, D, S2, D2, f = six
    d = rows.max(-1, keepdims=True).astype(int) - rows
    p = np.exp(-d * scale)
    s = (B - S * np.minimum(d, D) - S2 * np.minimum(d, D2)) >> f
    return float((((p / p.sum(-1, keepdims=True)) - s / s.sum(-1, keepdims=True)) ** 2).sum(-1).mean())


def test_error_of_outputs_is_the_formula(rng):
    x = random_logits(rng, (1, 2, 80, 24), spread=60)  # distances beyond 127 among them
    stats = gathered(x)
    thetas = drawn_lines(rng, 40)
    direct = [direct_output_error(x.reshape(-1, 24), 0.1, theta) for theta in thetas]
    np.testing.assert_allclose(objectives(stats, [0, 1], thetas, output=True), direct, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_least_error_of_outputs_comes_near_brute_force(seed, monkeypatch):
    from hccs.calibration import two_lines

    rng = np.random.default_rng(seed)
    monkeypatch.setattr(two_lines, "LARGEST_BASE", 300)
    x = rng.integers(-12, 1, (1, 1, 40, 16))
    stats = gathered(np.where(rng.random(x.shape) < 0.4, x // 3, x).astype(np.int8), scale=0.2 + 0.1 * seed)
    found = search(stats, lines=2, objective="output").heads[0]
    every = [
        (300, S, D, S2, D2, 0)
        for D in range(1, 13)
        for D2 in range(1, D + 1)
        for S in range(min(127, 299 // D) + 1)
        for S2 in range(min(127, (299 - S * D) // D2) + 1)
    ]
    least = objectives(stats, [0], every, output=True).min()
    ours = objectives(stats, [0], [found.params.packed], output=True)[0]
    assert ours <= least * 1.1 + 1e-9  # a local search
    fit_by_kl = search(stats, lines=2).heads[0]
    assert ours <= objectives(stats, [0], [fit_by_kl.params.packed], output=True)[0]
    assert found.runner_up_kl == pytest.approx(objectives(stats, [0], [found.runner_up.packed])[0])


def sinks(rng, n, rows=64):
    """Rows of which one key has most of the mass and all others lie six to nine nats below it."""
    x = rng.integers(-90, -60, (1, 1, rows, n)).astype(np.int8)
    x[..., 0] = 0
    return gathered(x, scale=0.1)


def test_long_rows_take_larger_scores_and_give_the_far_keys_less(rng):
    short, long = (sinks(rng, n) for n in (256, 1024))
    assert search(short, lines=2).heads[0].params.B <= 2047
    by_kl, by_output = (search(long, lines=2, objective=o).heads[0].params for o in ("kl_i16", "output"))
    assert max(by_kl.B, by_output.B) > 2047 and hccs.Region(1024, 24).max_base >= by_output.B
    row = np.full((1, 1024), -75, np.int8)
    row[0, 0] = 0
    exact = 1 / (1 + 1023 * np.exp(-7.5))
    capped = hccs.HeadParams(2047, 1, 75, 127, 15)  # what scores up to 2047 leave to the first key
    at_first = [hccs.softmax(row, theta, "i16_div")[0, 0] / 32767 for theta in (capped, by_output)]
    assert abs(at_first[1] - exact) < abs(at_first[0] - exact)


def test_error_of_outputs_is_for_wide_forms_alone(rng):
    stats = gathered(random_logits(rng, (1, 1, 40, 16)))
    assert search(stats, sum_bits=24, objective="output").table.sum_bits == 24
    with pytest.raises(ParameterError, match="lines=2 or sum_bits=24"):
        search(stats, objective="output")


@pytest.mark.parametrize("seed", range(4))
def test_search_finds_what_brute_force_finds(seed, monkeypatch):
    """Every admissible (S, D, S2, D2) of a base, over rows that reach a dozen steps."""
    from hccs.calibration import two_lines

    rng = np.random.default_rng(seed)
    monkeypatch.setattr(two_lines, "LARGEST_BASE", 400)
    x = rng.integers(-12, 1, (1, 1, 40, 16))
    x = np.where(rng.random(x.shape) < 0.4, x // 3, x).astype(np.int8)
    stats = gathered(x, scale=0.1 + 0.1 * seed)
    found = search(stats, lines=2).heads[0]
    every = [
        (400, S, D, S2, D2, 0)
        for D in range(1, 13)
        for D2 in range(1, D + 1)
        for S in range(min(127, 399 // D) + 1)
        for S2 in range(min(127, (399 - S * D) // D2) + 1)
    ]
    least = objectives(stats, [0], every).min()
    ours = objectives(stats, [0], [found.params.packed])[0]
    assert ours <= least * 1.005 + 1e-12
    assert ours <= objectives(stats, [0], [found.runner_up.packed])[0]


@pytest.mark.parametrize("scores", ["int16", "uint8"])
@pytest.mark.parametrize("granularity", ["head", "layer", "global"])
def test_two_lines_come_far_closer_than_one(rng, scores, granularity):
    x = random_logits(rng, (2, 2, 300, 64), spread=rng.uniform(15, 40, (2, 2, 300, 1)))
    stats = gathered(x, scale=0.08)
    one = search(stats, granularity=granularity)
    two = search(stats, granularity=granularity, lines=2, scores=scores, mode="u8_clb")
    assert two.kl < 0.35 * one.kl
    table = two.table
    assert (table.lines, table.sum_bits, table.mode.value) == (2, 24, "u8_clb")
    assert (table.f == (2 if scores == "uint8" else 0)).all()
    assert (
        len({table.head(i, j) for i in range(2) for j in range(2)})
        <= {"head": 4, "layer": 2, "global": 1}[granularity]
    )
    np.testing.assert_allclose(
        fidelity(stats, table)[..., 0].reshape(-1), [h.kl for h in two.heads], rtol=0, atol=1e-12
    )


def test_records_say_what_the_modes_do(rng):
    """KL as it is, renormalised, and the deficit, from the reference's own outputs."""
    x = random_logits(rng, (1, 1, 40, 20))
    stats = gathered(x)
    record = search(stats, lines=2).heads[0]
    p_hat = reference_softmax(x[0, 0], record.params).astype(float)
    p = np.exp((x[0, 0] - x[0, 0].max(-1, keepdims=True).astype(float)) * 0.1)
    p /= p.sum(-1, keepdims=True)
    steps = np.maximum(p_hat, 0.5)
    assert record.kl == pytest.approx((p * np.log(p * 32767 / steps)).sum(-1).mean(), abs=1e-9)
    share = steps / steps.sum(-1, keepdims=True)
    assert record.kl_renormalised == pytest.approx((p * np.log(p / share)).sum(-1).mean(), abs=1e-9)
    assert record.mass_deficit == pytest.approx(1 - p_hat.sum(-1).mean() / 32767, abs=1e-12)
    table = search(stats, lines=2, mode="u8_div").table
    out = np.maximum(reference_softmax(x[0, 0], table.head(0, 0), "u8_div").astype(float), 0.5)
    expected = (p * np.log(p / (out / out.sum(-1, keepdims=True)))).sum(-1).mean()
    found = deployed(stats, [0], table.head(0, 0), table.mode)[1]
    assert found == pytest.approx(expected, abs=1e-9)


def test_wide_sums_for_one_line_and_narrow_ones_for_two(rng):
    x = random_logits(rng, (1, 1, 200, 64), spread=30.0)
    stats = gathered(x)
    wide = search(stats, lines=1, sum_bits=24)
    assert wide.table.lines == 1 and wide.table.sum_bits == 24 and wide.table.head(0, 0).wide
    assert wide.kl <= search(stats).kl
    narrow = search(stats, lines=2, sum_bits=15)
    assert narrow.table.sum_bits == 15 and 64 * int(narrow.table.B.max()) <= 32767
    assert search(stats, n=2048, lines=2).table.n == 2048


def test_the_sample_knows_neither_order_nor_split(rng, tmp_path):
    x = random_logits(rng, (1, 2, 9000, 20))
    whole = gathered(x)
    assert (whole.sampled == 4096).all()
    parts = [gathered(part, n=20) for part in np.array_split(x[:, :, rng.permutation(9000)], 5, axis=2)]
    merged = parts[3]
    for part in (parts[1], parts[4], parts[0], parts[2]):
        merged.merge(part)
    assert merged == whole
    whole.save(tmp_path / "s")
    again = HeadStatistics.load(tmp_path / "s")
    assert again == whole and pickle.loads(pickle.dumps(whole)) == whole
    again.merge(whole)
    twice = gathered(np.concatenate([x, x], axis=2))
    assert again == twice
    results = [search(stats, lines=2).table.layer(0) for stats in (whole, merged, twice)]
    assert results[0] == results[1] == results[2]


def test_the_sample_is_a_fair_one(rng):
    """The objective over 4,096 of 30,000 rows lies within some standard errors of that over all."""
    x = random_logits(rng, (1, 1, 30_000, 16), spread=rng.uniform(5, 40, (1, 1, 30_000, 1)))
    stats = gathered(x)
    six = (1023, 4, 60, 30, 25, 0)
    d = x[0, 0].max(-1, keepdims=True).astype(int) - x[0, 0]
    p = np.exp(-d * 0.1)
    p /= p.sum(-1, keepdims=True)
    s = six[0] - six[1] * np.minimum(d, six[2]) - six[3] * np.minimum(d, six[4])
    kl = (p * (np.log(p) - np.log(s / s.sum(-1, keepdims=True)))).sum(-1)
    assert objectives(stats, [0], [six])[0] == pytest.approx(kl.mean(), abs=5 * kl.std() / 64)


def test_counted_rows_need_their_sample_and_kept_rows_are_their_own(rng, tmp_path):
    arrays, metadata = state_of(gathered(random_logits(rng, (1, 1, 3000, 8))))
    without = {k: array for k, array in arrays.items() if "sample" not in k and k != "quantised_sums"}
    with pytest.raises(ValueError, match="counted rows without a sample"):
        restored(HeadStatistics, without, metadata)
    FORMAT.save(tmp_path / "without", without, metadata)
    with pytest.raises(FileError, match="counted rows without a sample"):
        HeadStatistics.load(tmp_path / "without")
    kept = gathered(random_logits(rng, (1, 1, 300, 8)))
    assert not any("sample" in name for name in state_of(kept)[0])
    back = restored(HeadStatistics, *state_of(kept))
    assert search(back, lines=2).table == search(kept, lines=2).table


def test_forged_samples_are_refused(rng):
    arrays, metadata = state_of(gathered(random_logits(rng, (1, 2, 2000, 8))))

    def forged(name, change):
        copy = {key: array.copy() for key, array in arrays.items()}
        copy[name] = change(copy[name])
        with pytest.raises((ValueError, IndexError)):
            restored(HeadStatistics, copy, metadata)

    def at(index, value):
        def change(array):
            array[index] = value
            return array

        return change

    forged("sample_rows", at(0, 7))
    forged("sample_rows", lambda rows: rows[:-1])
    forged("sample_rows", lambda rows: rows[::-1].copy())
    forged("sample_index", at((0, 0), 5))
    forged("sample_index", at((0, 1), 9))
    forged("sample_index", at((0, 2), 0))
    forged("sample_index", at((0, 2), 10**6))
    forged("sample_index", lambda index: index[:, :2].copy())
    forged("quantised_sums", lambda sums: sums[:1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lines": 3}, "lines to be 1 or 2"),
        ({"lines": 2, "scores": "int4"}, "scores to be one of int16, uint8"),
        ({"lines": 1, "scores": "uint8"}, "lines=2 for uint8 scores"),
        ({"lines": 2, "sum_bits": 16}, "sum_bits to be 15 or 24"),
        ({"lines": 2, "objective": "kl_mode"}, "objective to be one of kl_i16, output"),
    ],
)
def test_options_that_make_no_sense_are_refused(rng, options, says):
    with pytest.raises(ParameterError, match=says):
        search(gathered(random_logits(rng, (1, 1, 10, 8))), **options)


def test_a_head_that_never_varies_gets_two_lines_all_the_same():
    stats = HeadStatistics((1, 1), 8, 0.1)
    stats.update(np.zeros((1, 1, 5, 8), np.int8))
    with pytest.warns(hccs.calibration.CalibrationWarning, match="never vary"):
        theta = hccs.calibrate(stats, lines=2).head(0, 0)
    assert theta.wide
