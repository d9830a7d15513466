"""The reference's attention against exact rational arithmetic, one output at a time, and against floats."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

import hccs
from hccs.reference.attention import as_float32, as_int8, requantise
from hccs.reference.attention import attention as reference_attention
from hccs.reference.softmax import scores
from tests.conftest import logits

HALF = Fraction(1, 2)


def clamp(value: int) -> int:
    return max(-128, min(127, value))


def naive_row(q, k, v, head, factor, attended):
    """(N, Z) of one query from the words of the specification, in Python's own integers."""
    B, S, D = head
    keys = [j for j in range(len(k)) if attended[j]]
    if not keys:
        return [0] * len(v[0]), 0
    x = {
        j: clamp(floor(Fraction(sum(a * b for a, b in zip(q, k[j], strict=True))) * factor + HALF))
        for j in keys
    }
    m = max(x.values())
    s = {j: B - S * min(m - x[j], D) for j in keys}
    return [sum(s[j] * v[j][c] for j in keys) for c in range(len(v[0]))], sum(s.values())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("selection", ["all", "mask", "lengths"])
def test_pairs_equal_rational_arithmetic(causal, selection):
    rng = np.random.default_rng(3)
    q, k, v = logits(1, (2, 3, 5, 7)), logits(2, (2, 3, 9, 7)), logits(3, (2, 3, 9, 7))
    theta = hccs.HeadParams([300, 900, 4], [5, 20, 0], [40, 12, 127])
    # The last factor saturates most logits, the first is a few steps wide.
    factor = hccs.FixedPoint([9, 77_001, 2**24 - 1], [14, 25, 20])
    valid = {
        "all": None,
        "mask": rng.random((2, 1, 5, 9)) < 0.5,
        "lengths": rng.integers(0, 10, (2, 3, 5)),
    }[selection]
    N, Z = reference_attention(q, k, v, theta, hccs.Requant(factor), valid=valid, causal=causal, out="pair")
    assert N.dtype == Z.dtype == np.int32
    for b, h, i in np.ndindex(2, 3, 5):
        attended = [
            (not causal or j <= i + 4)
            and (valid is None or (j < valid[b, h, i] if selection == "lengths" else bool(valid[b, 0, i, j])))
            for j in range(9)
        ]
        real = Fraction(int(factor.multiplier[h]), 2 ** int(factor.shift[h]))
        head = tuple(theta.packed[h].tolist())
        expected = naive_row(q[b, h, i].tolist(), k[b, h].tolist(), v[b, h].tolist(), head, real, attended)
        assert (N[b, h, i].tolist(), int(Z[b, h, i])) == expected


def test_requantiser_rounds_half_up_and_saturates():
    acc = np.array([[-(2**24), -3, -1, 0, 1, 3, 253, 254, 255, 2**24]])
    found = requantise(acc, hccs.FixedPoint(1, 1))
    assert found.tolist() == [[-128, -1, 0, 0, 1, 2, 127, 127, 127, 127]]
    edge = requantise(acc, hccs.FixedPoint(2**24 - 1, 47))
    assert edge.tolist() == [[-2, 0, 0, 0, 0, 0, 0, 0, 0, 2]]


def test_float_output_is_one_division_and_one_product():
    rng = np.random.default_rng(0)
    Z = rng.integers(1, 32768, 500)
    N = (rng.integers(-128, 128, (500, 3)) * Z[:, None]) // rng.integers(1, 7, (500, 3))
    requant = hccs.Requant(hccs.FixedPoint(1, 1), 0.037)
    found = as_float32(N, Z, requant)
    # float64 holds N / Z to far more bits than float32, and no N / Z lies that close to a tie.
    quotient = (N / Z[:, None]).astype(np.float32)
    np.testing.assert_array_equal(found, (quotient.astype(np.float64) * np.float32(0.037)).astype(np.float32))
    assert not as_float32(np.zeros((1, 3)), np.zeros(1), requant).any()


def test_int8_output_equals_its_formula_and_is_near_the_real_quotient():
    rng = np.random.default_rng(1)
    Z = np.concatenate([rng.integers(1, 32768, 300), 2 ** np.arange(15), [1, 32767]])
    N = rng.integers(-128 * Z, 128 * Z + 1)
    for output in (hccs.FixedPoint(2**23 + 12345, 24), hccs.FixedPoint(1, 1), hccs.FixedPoint(2**24 - 1, 47)):
        found = as_int8(N[:, None], Z, hccs.Requant(hccs.FixedPoint(1, 1), 1.0, output))
        real = Fraction(output.multiplier, 2**output.shift)
        for n, z, y in zip(N.tolist(), Z.tolist(), found[:, 0].tolist(), strict=True):
            k = z.bit_length() - 1
            R = floor(Fraction(output.multiplier * 2**k, z))
            assert y == clamp(floor(Fraction(n * R, 2 ** (output.shift + k)) + HALF))
            if output.multiplier >= 2**23:
                assert abs(y - clamp(floor(Fraction(n, z) * real + HALF))) <= 1


@pytest.mark.parametrize("mode", ["u8_div", "u8_clb"])
def test_probabilities_first_sums_what_softmax_returns(mode):
    q, k, v = logits(4, (2, 6, 16)), logits(5, (2, 11, 16)), logits(6, (2, 11, 16))
    theta, requant = hccs.HeadParams([300, 900], [5, 20], [40, 12]), hccs.Requant(hccs.FixedPoint(5, 11), 0.5)
    lengths = np.array([[11, 0, 3, 1, 8, 11]])
    x = np.clip(np.floor(q.astype(float) @ k.swapaxes(1, 2).astype(float) * 5 / 2**11 + 0.5), -128, 127)
    p = hccs.softmax(x.astype(np.int8), theta, mode, lengths).astype(int)
    N, Z = reference_attention(q, k, v, theta, requant, valid=lengths, mode=mode, out="pair")
    np.testing.assert_array_equal(N, p @ v.astype(int))
    assert (Z == 255).all()
    found = reference_attention(q, k, v, theta, requant, valid=lengths, mode=mode)
    np.testing.assert_allclose(found, p @ v.astype(int) / 255 * 0.5, rtol=1e-6)


def test_saturation_folds_into_distances():
    """The shortcut that docs/spec.md allows, over every position of the row's maximum."""
    theta = hccs.HeadParams(10_000, 70, 100)
    for top in range(-300, 300, 7):
        x = np.arange(top - 270, top + 1)
        expected = scores(np.clip(x, -128, 127).astype(np.int8)[None], theta)[0]
        m = min(top, 127)
        delta = np.clip(m - x, 0, np.clip(m + 128, 0, theta.D))
        np.testing.assert_array_equal(theta.B - theta.S * delta, expected)


def test_close_to_float_attention_of_the_same_scores():
    q, k, v = logits(7, (4, 8, 64)), logits(8, (4, 32, 64)), logits(9, (4, 32, 64))
    requant = hccs.Requant.from_scales(
        q_scale=0.02, k_scale=0.02, v_scale=0.03, logit_scale=0.05, scaling=0.125, out_scale=0.02
    )
    theta = hccs.HeadParams(900, 20, 40)
    z = (q * 0.02) @ (k * 0.02).swapaxes(1, 2) * 0.125 / 0.05
    s = 900 - 20 * np.minimum(z.max(-1, keepdims=True) - z, 40)
    expected = (s / s.sum(-1, keepdims=True)) @ (v * 0.03)
    found = reference_attention(q, k, v, theta, requant)
    assert np.abs(found - expected).max() < 0.03  # of values up to 1.5; logits were rounded
    rounded = reference_attention(q, k, v, theta, requant, out="int8") * 0.02
    assert np.abs(rounded - found).max() <= 0.01 * 1.0001
