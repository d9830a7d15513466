"""Parameters fitted to the data: one set per head, no worse than the defaults, for layers as for heads."""

import numpy as np
import pytest
from lab.tests.surrogates.conftest import SCALES, data

import hccs
import hccs_lab.surrogates as surrogates
from hccs.errors import DataError
from hccs_lab.surrogates import entmax, fitting

FITTED = {
    "hccs": {"B", "S", "D"},
    "hccs_two_lines": {"B", "S", "D", "S2", "D2", "f"},
    "hccs_two_lines_uint8": {"B", "S", "D", "S2", "D2", "f"},
    "index_softmax": {"c"},
    "exaq": {"sigma", "span"},
    "ita": {"step"},
    "softermax": {"factor"},
    "consmax": {"beta", "gamma"},
    "entmax": {"alpha"},
    "hls4ml": {"integer_bits"},
}

OURS = {"hccs": {}, "hccs_two_lines": {"lines": 2}, "hccs_two_lines_uint8": {"lines": 2, "scores": "uint8"}}


def divergence(method, params, x, valid):
    p = fitting.float_softmax(x, SCALES, valid)
    return fitting.divergence(method(x, SCALES, valid, **params), p, valid, 1)


def test_parameters_come_one_per_head(name):
    x, valid = data()
    params = surrogates.get(name).calibrate(x, SCALES, valid)
    assert set(params) == FITTED.get(name, set())
    for value in params.values():
        assert value.shape == (3,)


@pytest.mark.parametrize("name", sorted(FITTED))
def test_layers_and_batches_are_the_same_rows(name):
    x, valid = data()
    method = surrogates.get(name)
    alone = method.calibrate(x, SCALES, valid)
    by_head = [np.moveaxis(array, 0, 1).reshape(3, -1, x.shape[-1])[None] for array in (x, valid)]
    layered = method.calibrate(by_head[0], SCALES[None], by_head[1])
    for key, value in layered.items():
        assert value.shape == (1, 3)
        np.testing.assert_allclose(value[0], alone[key], rtol=1e-9)


def test_entmax_is_fitted_by_steps_that_end_where_the_halving_does():
    x, valid = data()
    for alpha in entmax.CANDIDATES:
        alphas = np.full(SCALES.shape, alpha)
        halved = surrogates.get("entmax")(x, SCALES, valid, alpha=alphas).probabilities
        stepped = entmax.by_newton(x, SCALES, valid, alphas)
        np.testing.assert_allclose(stepped.probabilities, halved, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(FITTED) - {*OURS, "consmax", "exaq"}))
def test_fitted_is_no_worse_than_default(name):
    x, valid = data()
    method = surrogates.get(name)
    fitted = method.calibrate(x, SCALES, valid)
    assert (divergence(method, fitted, x, valid) <= divergence(method, {}, x, valid) + 1e-12).all()


def test_ita_weighs_clipping_against_flattening():
    x, valid = data()
    method = surrogates.get("ita")
    steps = method.calibrate(x, SCALES, valid)["step"]
    assert (method.parameters["step"] <= steps).all()
    assert steps[2] > 1.2 * method.parameters["step"]  # the head whose logits are clipped most
    assert divergence(method, {"step": steps}, x, valid)[2] < 0.7 * divergence(method, {}, x, valid)[2]


def test_consmax_is_at_the_minimum():
    # Without the rows at the edges of int8, beside which all others are zero in float16.
    x, valid = (array[1:] for array in data())
    method = surrogates.get("consmax")
    params = method.calibrate(x, SCALES, valid)
    best = divergence(method, params, x, valid)
    for factor in (0.9, 1.1):
        assert (divergence(method, {**params, "gamma": factor * params["gamma"]}, x, valid) > best).all()
    mass = method(x, SCALES, valid, **params).probabilities.sum(-1)
    np.testing.assert_allclose(fitting.per_head(mass, valid, 1), 1, rtol=2e-3)


@pytest.mark.parametrize("name", OURS)
def test_hccs_finds_what_calibrate_finds(name):
    x, valid = data()
    statistics = hccs.calibration.HeadStatistics((1, 3), n=40, scale=SCALES)
    statistics.update(x, valid, layer=0)
    table = hccs.calibrate(statistics, **OURS[name])
    params = surrogates.get(name).calibrate(x, SCALES, valid)
    for key in FITTED[name]:
        np.testing.assert_array_equal(params[key], getattr(table, key)[0])


def test_two_lines_come_closer_than_one():
    x, valid = data()
    one, two, narrow = (
        divergence(method, method.calibrate(x, SCALES, valid), x, valid)
        for method in map(surrogates.get, OURS)
    )
    assert (two < 0.35 * one).all() and (narrow < 0.5 * one).all()


def test_divergence_is_kl_for_a_distribution():
    x, valid = data()
    p = fitting.float_softmax(x, SCALES, valid)
    q = fitting.float_softmax(x, 0.9 * SCALES, valid)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(p > 0, p * np.log(p / q), 0).sum(-1)
    expected = [rows[:, head][valid.any(-1)[:, head]].mean() for head in range(3)]
    found = fitting.divergence(surrogates.Result(q, None, None), p, valid, 1)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.all(abs(fitting.divergence(surrogates.Result(p, None, None), p, valid, 1)) < 1e-12)


def test_zeros_of_the_output_count_as_half_a_unit():
    p, valid = np.array([[0.9, 0.1]]), np.ones((1, 2), bool)
    result = surrogates.Result(np.array([[1.0, 0.0]]), np.array([[256, 0]]), 1 / 256)
    expected = 0.9 * np.log(0.9) + 0.1 * np.log(0.1 * 512) + 1 / 512
    assert fitting.divergence(result, p, valid, 0) == pytest.approx(expected)


def test_a_head_without_rows_is_refused():
    x, valid = data()
    none = np.array(valid)
    none[:, 1] = False
    with pytest.raises(DataError, match="a head without any"):
        surrogates.get("index_softmax").calibrate(x, SCALES, none)
