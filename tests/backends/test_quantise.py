"""The native quantiser of q, k and v: every instruction set, any strides, tails of any length."""

import numpy as np
import pytest

from hccs.backends.cpu import _native


@pytest.mark.parametrize("d", [1, 15, 16, 17, 64, 100])
def test_rounds_half_to_even_and_saturates(instruction_set, d):
    rng = np.random.default_rng(d)
    x = (rng.integers(-300, 300, (2, 3, 4, d)) / 2).astype(np.float32)
    by_token = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    factors = np.array([1.0, 0.1, 1e30], np.float32)
    expected = np.clip(np.rint(x * factors[:, None, None]), -128, 127).astype(np.int8)
    for source in (x, by_token):
        for out in (np.empty(x.shape, np.int8), np.empty((2, 4, 3, d), np.int8).transpose(0, 2, 1, 3)):
            assert _native.quantise(source, factors, out)
            assert np.array_equal(out, expected)


def test_tells_of_nan(instruction_set):
    factors, out = np.ones(1, np.float32), np.empty((1, 1, 2, 20), np.int8)
    for place in (0, 15, 19, 39):
        x = np.zeros((1, 1, 2, 20), np.float32)
        x.flat[place] = np.nan
        assert not _native.quantise(x, factors, out)
    assert _native.quantise(np.full((1, 1, 2, 20), np.inf, np.float32), factors, out)
    assert (out == 127).all()


def test_arrays_that_do_not_fit_are_refused():
    x, factors = np.zeros((1, 2, 3, 4), np.float32), np.ones(2, np.float32)
    good = np.empty(x.shape, np.int8)
    for arguments in (
        (x, factors[:1], good),
        (x, factors, good[:, :, :2]),
        (x[..., ::2], factors, np.empty((1, 2, 3, 2), np.int8)),
        (x[0], factors, good[0]),
        (x.astype(np.float64), factors, good),
    ):
        with pytest.raises(ValueError):
            _native.quantise(*arguments)
