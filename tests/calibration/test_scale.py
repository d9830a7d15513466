from __future__ import annotations

import numpy as np
import pytest

from hccs.calibration import LogitRange, quantise
from hccs.errors import DataError


def float_logits(rng, shape, spread=2.0):
    return rng.normal(0, spread, shape).astype(np.float32)


def test_quantise_rounds_half_to_even_and_clamps():
    z = np.array([[[0.5, 1.5, -0.5, -200.0, 200.0]], [[1.0, 3.0, -1.0, 0.0, 5.0]]])
    expected = [[[0, 2, 0, -128, 127]], [[0, 2, 0, 0, 2]]]
    assert quantise(z, np.array([1.0, 2.0])).tolist() == expected


def test_quantise_refuses_what_is_not_finite():
    z = np.array([[1.0, np.nan, np.inf]])
    with pytest.raises(DataError, match="2 of 3 NaN"):
        quantise(z, 1.0)
    assert quantise(z, 1.0, valid=np.array([True, False, False])).tolist() == [[1, 0, 0]]


def test_range_streams(rng):
    z = float_logits(rng, (2, 3, 50, 8))
    lengths = rng.integers(1, 9, (2, 3, 50))
    whole, parts = LogitRange((2, 3)), LogitRange((2, 3))
    whole.update(z, lengths)
    for layer in range(2):
        parts.update(z[layer][None], lengths[layer][None], layer=layer)
    taking_part = np.where(np.arange(8) < lengths[..., None], abs(z), 0)
    assert np.array_equal(parts.max_abs, whole.max_abs)
    assert np.array_equal(whole.max_abs, taking_part.max((2, 3)))
    assert np.array_equal(whole.scale, taking_part.max((2, 3)).astype(float) / 127)


def test_range_of_zeros_has_a_scale_and_missing_layers_are_named():
    extremes = LogitRange((2, 1))
    extremes.update(np.zeros((1, 4, 4), np.float32), layer=0)
    with pytest.raises(DataError, match="layer 1 head 0"):
        _ = extremes.scale
    extremes.update(np.zeros((1, 4, 4), np.float32), layer=1)
    assert extremes.scale.tolist() == [[1.0], [1.0]]
