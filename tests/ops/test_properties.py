"""What HCCS promises of its output, whatever the parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hccs
from tests.conftest import logits, triples

modes = st.sampled_from([mode.value for mode in hccs.Mode])
seeds = st.integers(0, 2**32 - 1)
N = 64
thetas = triples(N).map(lambda triple: hccs.HeadParams(*triple))


@given(theta=thetas, mode=modes, seed=seeds)
def test_order_is_kept_and_equal_inputs_are_equal(theta, mode, seed):
    x = logits(seed, (3, N))
    p = hccs.softmax(x, theta, mode).astype(int)
    rising = np.take_along_axis(p, np.argsort(x, axis=-1, kind="stable"), -1)
    assert (np.diff(rising) >= 0).all()
    for row_x, row_p in zip(x, p, strict=True):
        for value in np.unique(row_x):
            assert len(set(row_p[row_x == value])) == 1


@given(theta=thetas, mode=modes, seed=seeds)
def test_the_largest_logit_has_the_largest_probability(theta, mode, seed):
    x = logits(seed, (3, N))
    p = hccs.softmax(x, theta, mode)
    assert (np.take_along_axis(p, x.argmax(-1)[:, None], -1)[:, 0] == p.max(-1)).all()


@given(theta=thetas, mode=modes, seed=seeds)
def test_probabilities_stay_between_zero_and_T(theta, mode, seed):
    p = hccs.softmax(logits(seed, (3, N)), theta, mode).astype(int)
    assert p.min() >= 0
    assert p.max() <= hccs.Mode(mode).T


@given(theta=thetas, mode=st.sampled_from(["i16_div", "u8_div"]), seed=seeds)
def test_division_never_sums_above_T(theta, mode, seed):
    p = hccs.softmax(logits(seed, (3, N)), theta, mode).astype(int)
    assert (p.sum(-1) <= hccs.Mode(mode).T).all()


@given(theta=thetas, mode=modes, seed=seeds, shift=st.integers(-60, 60))
def test_shifting_all_logits_changes_nothing(theta, mode, seed, shift):
    x = np.clip(logits(seed, (3, N)), -68, 67)
    np.testing.assert_array_equal(
        hccs.softmax(x, theta, mode), hccs.softmax((x + np.int8(shift)).astype(np.int8), theta, mode)
    )


@given(theta=thetas, mode=modes, seed=seeds)
def test_a_masked_row_is_the_compressed_row(theta, mode, seed):
    x = logits(seed, (1, N))
    mask = np.random.default_rng(seed).random((1, N)) < 0.5
    p = hccs.softmax(x, theta, mode, mask)
    assert (p[~mask] == 0).all()
    np.testing.assert_array_equal(p[mask], hccs.softmax(x[mask], theta, mode))


@given(theta=thetas, mode=modes, seed=seeds, length=st.integers(0, N))
def test_a_length_is_a_mask_of_leading_columns(theta, mode, seed, length):
    x = logits(seed, (2, N))
    np.testing.assert_array_equal(
        hccs.softmax(x, theta, mode, np.array(length)), hccs.softmax(x, theta, mode, np.arange(N) < length)
    )
