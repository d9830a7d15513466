"""The integer operators of an encoder against the real functions they stand for, with their error bounds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hccs.errors import DataError, ParameterError
from hccs.numbers.layers import (
    EmbeddingParams,
    LinearParams,
    NormParams,
    quantise_linear,
    quantise_scores,
    word_step,
)
from hccs.reference.embedding import embedding
from hccs.reference.layer_norm import inverse_root, layer_norm
from hccs.reference.linear import linear, narrow, requantise, shift_half_even
from hccs.reference.table import look_up, table


@given(st.integers(-(2**58), 2**58), st.integers(0, 40))
def test_shifts_round_half_to_even(a, bits):
    assert int(shift_half_even(np.int64(a), bits)) == round(Fraction(a, 2**bits))


@given(st.integers(-(2**31) + 1, 2**31 - 1), st.integers(1, 2**24 - 1), st.sampled_from([127, 32767]))
def test_requantisation_is_the_rounded_product(acc, multiplier, limit):
    exact = min(max(round(Fraction(acc * multiplier, 2**16)), -limit), limit)
    assert int(requantise(np.int64(acc), multiplier, limit)) == exact


@given(st.integers(-(2**31) + 1, 2**31 - 1), st.integers(1, 2**24 - 1))
def test_int8_requantisation_is_what_float32_runtimes_compute(acc, multiplier):
    """Products below 2^24 are exact in float32; larger ones mean |y| >= 256, which is clipped either way."""
    scaled = np.float32(acc) * np.float32(multiplier / 2**16)
    assert int(requantise(np.int64(acc), multiplier, 127)) == int(np.clip(np.rint(scaled), -127, 127))


def test_narrowing_rounds_half_to_even_and_saturates():
    x = np.array([64, 192, 191, -64, -192, 32767, -32767], np.int16)
    assert narrow(x, 7).tolist() == [0, 2, 1, 0, -2, 127, -127]


@pytest.mark.parametrize("seed", range(5))
def test_a_linear_layer_is_off_by_its_roundings_alone(seed):
    """|y - real| <= 1/2 for the output's rounding, plus half steps of weights and bias times M / 2^16."""
    rng = np.random.default_rng(seed)
    W, b = rng.normal(0, rng.uniform(0.01, 2), (24, 96)), rng.normal(0, 1, 24)
    in_scale, out_scale = 0.02, np.repeat(rng.uniform(0.05, 0.5, 4), 6)
    x = rng.integers(-127, 128, (200, 96)).astype(np.int8)
    layer = quantise_linear(W, b, in_scale=in_scale, out_scale=out_scale)
    real = np.clip((x * in_scale @ W.T + b) / out_scale, -127, 127)
    assert layer.multiplier is not None
    bound = 0.5 + layer.multiplier / 2**16 * (abs(x.astype(int)).sum(1, keepdims=True) / 2 + 0.5)
    assert (abs(linear(x, layer) - real) <= bound + 1e-9).all()
    # Measured, the error is that of independent roundings: far below the bound.
    assert np.std(linear(x, layer) - real) < 3 * np.sqrt(
        1 / 12 + (layer.multiplier.max() / 2**16) ** 2 * 96 * 64**2 / 12
    )


def test_the_weights_absorb_the_multipliers_rounding():
    """With weights on the grid that M defines the integers are the real layer's, rounded once."""
    rng = np.random.default_rng(0)
    layer = quantise_linear(rng.normal(0, 1, (16, 64)), rng.normal(0, 1, 16), in_scale=0.03, out_scale=0.2)
    assert layer.multiplier is not None
    scale = layer.multiplier / 2**16 * 0.2 / 0.03
    x = rng.integers(-127, 128, (300, 64)).astype(np.int8)
    real = ((x * 0.03) @ (layer.weight * scale[:, None]).T + layer.bias * 0.03 * scale) / 0.2
    assert (abs(np.clip(real, -127, 127) - linear(x, layer)) <= 0.5 + 1e-6).all()


def test_scores_of_all_classes_have_one_step():
    rng = np.random.default_rng(1)
    W, b, x = (
        rng.normal(0, 1, (3, 32)),
        rng.normal(0, 1, 3),
        rng.integers(-127, 128, (50, 32)).astype(np.int8),
    )
    layer, step = quantise_scores(W, b, in_scale=0.01)
    real = x * 0.01 @ W.T + b
    assert abs(linear(x, layer) * step - real).max() < 32 * 127 * 0.01 * abs(W).max() / 127 / 2 + step


def test_layers_that_could_overflow_are_refused():
    wide = np.full((1, 2**18), 127, np.int8)
    with pytest.raises(ParameterError, match="accumulators below 2\\^31"):
        LinearParams(wide, np.zeros(1, np.int32), np.ones(1, np.int32))
    with pytest.raises(ParameterError, match="multipliers below 2\\^24"):
        quantise_linear(np.ones((1, 4)), np.zeros(1), in_scale=1.0, out_scale=1e-6)
    with pytest.raises(DataError, match="finite numbers in weight"):
        quantise_linear(np.full((1, 4), np.nan), np.zeros(1), in_scale=1.0, out_scale=1.0)
    with pytest.raises(ParameterError, match="biases that fit int32"):
        quantise_linear(np.full((1, 4), 1e-9), np.full(1, 1e5), in_scale=1e-3, out_scale=1e3 * 1e-3)


# --- LayerNorm ----------------------------------------------------------------------------------------------


def real_layer_norm(v, gamma, beta, eps, in_scale, out_scale):
    x = v.astype(np.longdouble) * in_scale
    centred = x - x.mean(-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gamma + beta) / out_scale


def extreme_rows(h):
    rows = [np.zeros(h), np.full(h, 65534), np.full(h, -65534), np.arange(h) % 2 * 131068 - 65534]
    outlier = np.zeros(h)
    outlier[h // 2] = 65534
    rows += [outlier, -outlier, outlier + 1, (np.arange(h) == 0) * 1, np.arange(h) - h // 2]
    rows.append(np.where(np.arange(h) < h - 1, 65534, -65534))
    return np.array(rows).astype(np.int32)


@pytest.mark.parametrize("h", [2, 32, 100, 128, 384, 512, 768, 1024])
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_layer_norm_is_within_one_step_of_the_real_one(h, eps):
    rng = np.random.default_rng(h)
    for spread in (1, 300, 20000):
        gamma, beta = rng.normal(1, 0.5, h), rng.normal(0, 0.5, h)
        in_scale, out_scale = 10 ** rng.uniform(-5, -2), 10 ** rng.uniform(-4, -2)
        params = NormParams.from_float(gamma, beta, eps, in_scale=in_scale, out_scale=out_scale)
        drawn = np.clip(np.rint(rng.normal(0, spread, (400, h))), -65534, 65534).astype(np.int32)
        v = np.concatenate([drawn, extreme_rows(h)])
        effective = float(params.epsilon) * in_scale**2 / h**3  # eps, counted in integer steps, at least one
        real = np.clip(real_layer_norm(v, gamma, beta, effective, in_scale, out_scale), -32767, 32767)
        assert abs(layer_norm(v, params) - real).max() <= 1.0


@pytest.mark.parametrize("h", [2, 31, 32, 768, 1024])
def test_the_inverse_root_has_29_bits(h):
    rng = np.random.default_rng(h)
    for Q in [1, 2, 3, 4, 2**61, 2**62, 2**63 - 1, *(int(2 ** rng.uniform(0, 63)) for _ in range(300))]:
        r, shift = inverse_root(Q, h)
        assert 2**29 <= r < 2**31 and shift >= 5
        assert abs(r * 2.0 ** -(shift + 20) / (h / Q) ** 0.5 - 1) < 2**-28


def test_gains_that_do_not_fit_are_refused():
    with pytest.raises(ParameterError, match="below 2\\^23"):
        NormParams.from_float([1e9, 1], [0, 0], 1e-5, in_scale=1.0, out_scale=1e-3)
    with pytest.raises(DataError, match="finite gamma"):
        NormParams.from_float([np.nan, 1], [0, 0], 1e-5, in_scale=1.0, out_scale=1e-3)


# --- tables and embeddings ----------------------------------------------------------------------------------


def test_a_table_is_the_function_rounded():
    entries = table(np.tanh, 0.03, 1 / 127)
    x = np.arange(-128, 128).astype(np.int8)
    assert (abs(look_up(x, entries) - 127 * np.tanh(x * 0.03)) <= 0.5).all()
    with pytest.raises(DataError, match="finite"):
        table(lambda x: np.where(x > 0, np.inf, x), 0.1, 0.1)


@pytest.mark.parametrize("largest_position", [0.01, 1.0, 30.0])
def test_embeddings_are_off_by_half_a_step_of_each_part(largest_position):
    rng = np.random.default_rng(3)
    W, P, T = (
        rng.normal(0, 1, (50, 16)),
        rng.normal(0, largest_position, (20, 16)),
        rng.normal(0, 0.1, (2, 16)),
    )
    coarse, shift = word_step(W, P, T)
    params, step = EmbeddingParams.from_float(W, P, T, coarse, shift), coarse / 2**shift
    tokens, types = rng.integers(0, 50, (4, 20)), rng.integers(0, 2, (4, 20))
    v = embedding(tokens, np.arange(20)[None], types, params)
    real = W[tokens] + P[None] + T[types]
    assert abs(v * step - real).max() <= step * (2**params.shift / 2 + 1) + 1e-9
    assert abs(v).max() <= 2**16
