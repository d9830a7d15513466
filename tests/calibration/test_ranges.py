"""Ranges of values: merged in any order to the same bits, kept in files, clipped where it costs least."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hccs.calibration import ValueRanges
from hccs.calibration.ranges import (
    BINS,
    CLIPS,
    ERROR_UNIT,
    FORMAT,
    INVERSE_UNIT,
    MIDDLES,
    REACHES,
    StreamErrors,
    ValueRange,
)
from hccs.errors import DataError, FileError, ParameterError


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
    errors = StreamErrors(200, np.rint(rng.uniform(0, 9, len(REACHES))), float(rng.integers(1, 99)))
    return ValueRanges(values, errors if stream else None, layers=1)


def same(a, b):
    return all(
        np.array_equal(a.values[name].largest, b.values[name].largest)
        and np.array_equal(a.values[name].counts, b.values[name].counts)
        for name in a.values
    ) and (a.stream.tokens, a.stream.clipped.tolist(), a.stream.inverse_variance) == (
        b.stream.tokens,
        b.stream.clipped.tolist(),
        b.stream.inverse_variance,
    )


def test_parts_merge_to_the_same_bits_in_any_order():
    merged = []
    for order in itertools.permutations(range(4)):
        whole = ranges_of(order[0])
        for seed in order[1:]:
            whole.merge(ranges_of(seed))
        merged.append(whole)
    assert all(same(merged[0], other) for other in merged[1:])
    assert merged[0].stream.tokens == 800 and merged[0].values["wide0"].counts.sum() == 4 * 200 * 16


def test_a_file_is_the_ranges(tmp_path):
    ranges = ranges_of(0)
    ranges.save(tmp_path / "part")
    again = ValueRanges.load(tmp_path / "part")
    assert same(ranges, again) and again.layers == 1
    assert again.magnitudes("least-error").keys() == ranges.magnitudes("least-error").keys()
    whole = (tmp_path / "part").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 40).tolist():
        (tmp_path / "part").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(FileError):
            ValueRanges.load(tmp_path / "part")


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("largest.wide0", np.full(16, np.nan, np.float32)),
        ("largest.wide0", np.ones(16)),
        ("largest.query0", np.ones(7, np.float32)),
        ("counts.wide0", np.full((1, BINS), -1)),
        ("counts.wide0", np.zeros((1, 3), np.int64)),
        ("clipped", np.zeros(2)),
        ("clipped", np.full(len(REACHES), np.nan)),
        ("clipped", np.full(len(REACHES), -1.0)),
        ("clipped", np.zeros(len(REACHES), np.int64)),
        *(("stream", np.array([200.0, wrong])) for wrong in (np.nan, np.inf, -np.inf, -1.0)),
        *(("stream", np.array([wrong, 1.0])) for wrong in (np.nan, np.inf, -np.inf, -1.0, 2.0**60)),
        ("stream", np.array([200.0])),
    ],
)
def test_forged_files_are_refused(array, value, tmp_path):
    ranges_of(0).save(tmp_path / "part")
    arrays, metadata = FORMAT.load(tmp_path / "part")
    FORMAT.save(tmp_path / "forged", {**arrays, array: value}, metadata)
    with pytest.raises(FileError, match="consistent ranges"):
        ValueRanges.load(tmp_path / "forged")


@pytest.mark.parametrize("ranges", ["3", '{"values": [""], "layers": 1}', '{"values": ["x0"], "layers": %s}'])
@pytest.mark.parametrize("layers", ["-1", "1e400", "NaN", '"1"', "null", str(2**70)])
def test_forged_descriptions_are_refused(ranges, layers, tmp_path):
    ranges_of(0).save(tmp_path / "part")
    arrays, metadata = FORMAT.load(tmp_path / "part")
    FORMAT.save(tmp_path / "forged", arrays, {**metadata, "ranges": ranges.replace("%s", layers)})
    with pytest.raises(FileError, match="consistent ranges"):
        ValueRanges.load(tmp_path / "forged")


def test_a_stream_without_values_is_refused(tmp_path):
    ranges = ranges_of(0)
    del ranges.values["x0"]
    ranges.save(tmp_path / "part")
    with pytest.raises(FileError, match="a stream without its values"):
        ValueRanges.load(tmp_path / "part")


@pytest.mark.parametrize("name", ["counts", "tokens", "inverse_variance"])
def test_sums_that_would_overflow_are_refused_and_change_nothing(name):
    def heavy():
        ranges = ranges_of(0)
        if name == "counts":
            ranges.values["wide0"].counts[0, 5] = 2**62
        else:
            setattr(ranges.stream, name, {"tokens": 2**53, "inverse_variance": 1e308}[name])
        return ranges

    whole = heavy()
    with pytest.raises(DataError):
        whole.merge(heavy())
    assert same(whole, heavy())
    whole.merge(ranges_of(1) if name == "counts" else ValueRanges(heavy().values, StreamErrors(), 1))
    assert whole.values["wide0"].counts.min() >= 0


def test_other_values_do_not_merge_and_methods_have_names():
    with pytest.raises(DataError, match="the same values"):
        ranges_of(0).merge(ranges_of(0, stream=False))
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
    errors = StreamErrors(1000, clipped, 1000 / INVERSE_UNIT)
    assert 100 <= errors.best(30000.0, roundings=3) < 100 * 2**0.5  # clipping costs nothing from 100 on
    assert errors.best(60.0, roundings=3) == 60.0  # and nothing is clipped that is not there
    dear = StreamErrors(1000, np.full(len(REACHES), np.inf), 1000 / INVERSE_UNIT)
    assert dear.best(30000.0, roundings=3) == 30000.0
