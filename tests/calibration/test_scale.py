from __future__ import annotations

import numpy as np
import pytest

from hccs.calibration import HeadStatistics, LogitRange, ScaleCandidates, quantise, search
from hccs.errors import DataError, ParameterError, ShapeError


def float_logits(rng, shape, spread=2.0):
    return rng.normal(0, spread, shape).astype(np.float32)


def candidates_for(z, valid=None, **options):
    extremes = LogitRange(z.shape[:2])
    extremes.update(z, valid)
    candidates = ScaleCandidates(extremes, z.shape[-1], **options)
    candidates.update(z, valid)
    return candidates


def test_quantise_rounds_half_to_even_and_clamps():
    z = np.array([[[0.5, 1.5, -0.5, -200.0, 200.0]], [[1.0, 3.0, -1.0, 0.0, 5.0]]])
    expected = [[[0, 2, 0, -128, 127]], [[0, 2, 0, 0, 2]]]
    assert quantise(z, np.array([1.0, 2.0])).tolist() == expected


def test_quantise_refuses_what_is_not_finite():
    z = np.array([[1.0, np.nan, np.inf]])
    with pytest.raises(DataError, match="2 of 3 NaN"):
        quantise(z, 1.0)
    assert quantise(z, 1.0, valid=np.array([True, False, False])).tolist() == [[1, 0, 0]]


def test_range_streams_and_merges(rng):
    z = float_logits(rng, (2, 3, 50, 8))
    lengths = rng.integers(1, 9, (2, 3, 50))
    whole, parts = LogitRange((2, 3)), [LogitRange((2, 3)), LogitRange((2, 3))]
    whole.update(z, lengths)
    for layer in range(2):
        parts[layer].update(z[layer][None], lengths[layer][None], layer=layer)
    parts[0].merge(parts[1])
    taking_part = np.where(np.arange(8) < lengths[..., None], abs(z), 0)
    assert np.array_equal(parts[0].max_abs, whole.max_abs)
    assert np.array_equal(whole.max_abs, taking_part.max((2, 3)))
    assert np.array_equal(whole.scale, taking_part.max((2, 3)).astype(float) / 127)


def test_range_of_zeros_has_a_scale_and_missing_layers_are_named():
    extremes = LogitRange((2, 1))
    extremes.update(np.zeros((1, 4, 4), np.float32), layer=0)
    with pytest.raises(DataError, match="layer 1 head 0"):
        _ = extremes.scale
    extremes.update(np.zeros((1, 4, 4), np.float32), layer=1)
    assert extremes.scale.tolist() == [[1.0], [1.0]]
    with pytest.raises(DataError, match="ranges of shape"):
        extremes.merge(LogitRange((1, 1)))


def test_best_scale_is_never_worse_than_max_abs(rng):
    z = float_logits(rng, (2, 2, 150, 24))
    # A single outlier far below the maximum: max-abs would spend its steps on it.
    z[0, 0, 0, 0] = -90.0
    candidates = candidates_for(z, factors=(1.0, 0.5, 0.15))
    kl = candidates.kl()
    best = search(candidates.best())
    assert kl.shape == (3, 2, 2)
    assert [r.kl for r in best.heads] == kl.min(axis=0).ravel().tolist()
    assert best.heads[0].scale < candidates.statistics.scale[0, 0]
    assert (kl.min(axis=0) <= kl[0]).all()


def test_candidates_are_those_of_separate_statistics(rng):
    z = float_logits(rng, (1, 3, 40, 10))
    mask = rng.random((1, 3, 40, 10)) < 0.8
    mask[..., 0] = True
    candidates = candidates_for(z, mask, factors=(1.0, 0.7))
    alone = HeadStatistics((1, 3), 10, candidates.statistics.scale[:, 3:], reference="float")
    alone.update(z, mask)
    assert candidates.statistics.select(np.array([[3, 4, 5]])) == alone


def test_candidates_take_layers_and_broadcast_masks(rng):
    z = float_logits(rng, (1, 2, 40, 10))
    lengths = rng.integers(1, 11, (5, 1, 1))
    extremes = LogitRange((1, 2))
    extremes.update(z)
    by_layer, whole = ScaleCandidates(extremes, 10), ScaleCandidates(extremes, 10)
    by_layer.update(z[0].reshape(2, 5, 8, 10).swapaxes(0, 1), lengths, layer=0)
    whole.update(z, np.repeat(lengths[:, 0, 0], 8))
    assert by_layer.statistics == whole.statistics
    by_layer.merge(whole)
    assert by_layer.statistics.rows.tolist() == [[80] * 8]


def test_wrong_candidates_are_refused(rng):
    extremes = LogitRange((1, 2))
    extremes.update(float_logits(rng, (1, 2, 4, 6)))
    with pytest.raises(ParameterError, match="factors positive"):
        ScaleCandidates(extremes, 6, factors=(1.0, -1.0))
    with pytest.raises(ShapeError, match="2 heads"):
        ScaleCandidates(extremes, 6).update(np.zeros((1, 3, 4, 6), np.float32))
