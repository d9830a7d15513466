"""Ranges of values: without padding, clipped where it costs least."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.errors import DataError, ParameterError
from hccs.nn.lowering import take_apart
from hccs.nn.lowering.ranges import (
    BINS,
    CLIPS,
    ERROR_UNIT,
    INVERSE_UNIT,
    MIDDLES,
    REACHES,
    StreamErrors,
    ValueRange,
    ValueRanges,
    measured,
)
from tests.nn.test_lowering import made
from tests.nn.test_lowering_pre_norm import made as made_pre_norm


def counted(values, heads=1):
    """The range of rows [n, channels], binned by hand."""
    split = np.abs(values).reshape(len(values), heads, -1)
    counts = np.zeros((heads, BINS), np.int64)
    for head in range(heads):
        nearest = np.searchsorted(MIDDLES, split[:, head].ravel())
        counts[head] = np.bincount(np.clip(nearest, 0, BINS - 1), minlength=BINS)
    return ValueRange(np.abs(values).max(0).astype(np.float32), counts)


def ranges_of(seed, stream=True):
    rng = np.random.default_rng(seed)
    values = {
        "x0": ValueRange(rng.uniform(1, 50, 8).astype(np.float32), np.zeros((1, 0), np.int64)),
        "query0": counted(rng.standard_t(3, (200, 8)), heads=2),
        "wide0": counted(rng.normal(0, 1, (200, 16))),
    }
    errors = StreamErrors(np.rint(rng.uniform(0, 9, len(REACHES))), float(rng.integers(1, 99)))
    return ValueRanges(values, errors if stream else None, layers=1)


def test_methods_have_names():
    with pytest.raises(ParameterError, match="max-abs, least-error"):
        ranges_of(0).magnitudes("percentile")


@pytest.mark.parametrize("tail", [1.5, 3, 30])
def test_the_least_error_is_that_of_the_values_themselves(tail):
    values = np.random.default_rng(7).standard_t(tail, (4000, 8))
    found = float(counted(values).least_error[0])

    def error(clip):
        step = clip / 127
        return np.square(values - np.clip(np.rint(values / step), -127, 127) * step).mean()

    largest = np.abs(values).max()
    best = min(error(share * largest) for share in CLIPS)
    assert error(found) < 1.03 * best
    assert found <= largest


def test_a_stream_reaches_as_far_as_clipping_and_rounding_balance():
    clipped = np.where(REACHES < 100, 1e6, 0) / ERROR_UNIT
    errors = StreamErrors(clipped, 1000 / INVERSE_UNIT)
    assert 100 <= errors.best(30000.0, roundings=3) < 100 * 2**0.5  # clipping costs nothing from 100 on
    assert errors.best(60.0, roundings=3) == 60.0  # and nothing is clipped that is not there
    dear = StreamErrors(np.full(len(REACHES), np.inf), 1000 / INVERSE_UNIT)
    assert dear.best(30000.0, roundings=3) == 30000.0


def test_padding_and_ranges_of_another_model():
    model, _, batches = made("bert")
    padded = [
        {key: torch.nn.functional.pad(value, (0, 7)) for key, value in batch.items()} for batch in batches
    ]
    close, far = (measured(model, take_apart(model), given) for given in (batches, padded))
    for name, value in close.values.items():
        np.testing.assert_allclose(value.largest, far.values[name].largest, rtol=1e-4, atol=1e-5)
        assert value.counts.sum() == far.values[name].counts.sum()
    other, other_table, _ = made_pre_norm("gpt2")
    with pytest.raises(DataError, match="ranges of this model's values"):
        hccs.nn.lower(other, other_table, [], ranges=close)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = 1e38
    with pytest.raises(DataError, match="NaN or infinity at x0"):
        measured(model, take_apart(model), [{"input_ids": torch.full((1, 4), 7)}])
