from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccs.calibration import HeadStatistics, _native, search
from hccs.calibration.searching import objectives
from hccs.calibration.state import FORMAT
from hccs.errors import DataError, DtypeError, FileError, MaskError, ParameterError, ShapeError
from hccs.numbers.region import Region
from tests.calibration.conftest import direct_kl, random_logits
from tests.conftest import from_four_threads


def random_triples(rng, n, count):
    region = Region(n)
    triples = []
    for _ in range(count):
        D = int(rng.integers(1, 128))
        S = int(rng.integers(0, region.max_slope(D) + 1))
        triples.append((int(rng.integers(region.min_base(S, D), region.max_base + 1)), S, D))
    return sorted(triples, key=lambda t: t[::-1])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from([1, 2, 7, 31, 64, 100, 200]))
def test_objective_equals_the_direct_formula(seed, n):
    rng = np.random.default_rng(seed)
    rows, scale = int(rng.integers(1, 60)), float(rng.uniform(0.005, 1.0))
    x = random_logits(rng, (1, 1, rows, n))
    mask = rng.random((1, 1, rows, n)) < rng.uniform(0.2, 1)
    stats = HeadStatistics((1, 1), n, scale)
    stats.update(x, mask)
    kept = [row[m] for row, m in zip(x[0, 0], mask[0, 0], strict=True) if m.any()]
    if not kept:
        return
    triples = random_triples(rng, n, 12)
    expected = [direct_kl(kept, scale, *triple) for triple in triples]
    np.testing.assert_allclose(objectives(stats, [0], triples), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [300, 9000], ids=["rows kept", "rows counted"])
def test_order_and_split_change_no_bit(rng, rows):
    x = random_logits(rng, (2, 3, rows, 20))
    lengths = rng.integers(0, 21, (2, 3, rows)) if rows < 1000 else rng.integers(19, 21, (2, 3, rows))
    whole = HeadStatistics((2, 3), 20, 0.07)
    whole.update(x, lengths)

    order = rng.permutation(rows)
    parts = [HeadStatistics((2, 3), 20, 0.07) for _ in range(3)]
    for i, chunk in enumerate(np.array_split(order, 7)):
        for layer in range(2):
            parts[i % 3].update(x[layer, :, chunk].swapaxes(0, 1), lengths[layer][:, chunk], layer=layer)
    parts[0].merge(parts[2])
    parts[1].merge(parts[0])
    assert parts[1] == whole
    assert parts[1].rows.tolist() == (lengths > 0).sum(-1).tolist()


@pytest.mark.parametrize("reference", ["int8", "float"])
def test_masked_equals_lengths_equals_compressed(rng, reference):
    x = random_logits(rng, (1, 2, 50, 16))
    x = x if reference == "int8" else x * np.float32(0.07)
    lengths = rng.integers(1, 17, (1, 2, 50))
    by_length, by_mask, compressed = (HeadStatistics((1, 2), 16, 0.1, reference=reference) for _ in range(3))
    by_length.update(x, lengths)
    # Valid columns anywhere in the row, and anything at all in the others.
    mask = rng.permuted(np.arange(16) < lengths[..., None], axis=-1)
    scattered = np.full_like(x, 127 if reference == "int8" else np.nan)
    scattered[mask] = x[np.arange(16) < lengths[..., None]]
    by_mask.update(scattered, mask)
    for head in range(2):
        for row, c in zip(x[0, head], lengths[0, head], strict=True):
            one = np.zeros((1, 2, 1, c), x.dtype)
            one[0, head, 0] = row[:c]
            compressed.update(one, np.where(np.arange(2) == head, c, 0)[None, :, None])
    assert by_mask == by_length == compressed


def test_layers_arrive_in_any_batch_shape(rng):
    x = random_logits(rng, (2, 3, 40, 12))
    whole, by_layer = HeadStatistics((2, 3), 12), HeadStatistics((2, 3), 12)
    whole.update(x)
    for layer in range(2):
        # [batch, heads, q, k], the padding mask of a transformer, and one with more leading dimensions.
        batches = x[layer].reshape(3, 4, 10, 12).swapaxes(0, 1)
        by_layer.update(batches[:2], np.ones((2, 1, 1, 12), bool), layer=layer)
        by_layer.update(batches[None, 2:], np.full((1, 2, 1, 1), 12), layer=layer)
    assert by_layer == whole


def test_float_statistics_compare_with_the_float_softmax(rng):
    z = rng.normal(0, 3, (1, 1, 60, 20)).astype(np.float32)
    scale = 0.05  # coarse enough to clip: the largest logits exceed 127 * scale
    stats = HeadStatistics((1, 1), 20, scale, reference="float")
    stats.update(z)
    x = np.clip(np.rint(z.astype(np.float64) / scale), -128, 127).astype(np.int64)
    triples = random_triples(rng, 20, 8)
    expected = [direct_kl(list(x[0, 0]), scale, *t, reference=z[0, 0]) for t in triples]
    np.testing.assert_allclose(objectives(stats, [0], triples), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("weight", [1, 100, 2**20, 2**36], ids=["16 bits", "32 bits", "wider", "64 bits"])
def test_counts_never_overflow(rng, weight):
    x = random_logits(rng, (1, 1, 1500, 6))
    heavy, light = HeadStatistics((1, 1), 6, 0.1), HeadStatistics((1, 1), 6, 0.1)
    heavy.update(x, weight=np.full((1, 1, 1500), weight))
    light.update(x)
    triples = random_triples(rng, 6, 20)
    np.testing.assert_allclose(objectives(heavy, [0], triples), objectives(light, [0], triples), atol=1e-12)
    assert heavy.summary([0]).weight == 1500 * weight


def test_the_heaviest_rows_are_searched_like_light_ones(rng):
    x = random_logits(rng, (1, 1, 1500, 60))
    heavy, light = HeadStatistics((1, 1), 60, 0.1), HeadStatistics((1, 1), 60, 0.1)
    heavy.update(x, weight=2**39)
    light.update(x)
    for _ in range(13):  # 1500 * 2^52 is just below 2^63
        heavy.merge(heavy)
    assert heavy.summary([0]).weight == 1500 * 2**52
    found, expected = search(heavy).heads[0], search(light).heads[0]
    assert found.params == expected.params
    assert found.kl == pytest.approx(expected.kl, abs=1e-12)


def test_weights_that_would_wrap_leave_the_statistics_as_they_were(rng):
    stats = HeadStatistics((1, 2), 4)
    stats.update(random_logits(rng, (1, 2, 1, 4)), weight=2**39)
    for _ in range(23):
        stats.merge(stats)
    before = stats.summary([0]), stats.summary([1])
    with pytest.raises(DataError, match=r"less than 2\^63 units"):
        stats.merge(stats)
    after = stats.summary([0]), stats.summary([1])
    assert [s.weight for s in before] == [s.weight for s in after] == [2.0**62] * 2
    assert stats.rows.tolist() == [[2**23] * 2]


@pytest.mark.parametrize("rows", [10, 1023, 3000], ids=["kept", "counted by it", "counted"])
def test_merged_with_itself_every_row_counts_twice(rng, rows):
    x = random_logits(rng, (1, 2, rows, 12))
    stats, twice = HeadStatistics((1, 2), 12), HeadStatistics((1, 2), 12)
    stats.update(x, rng.integers(11, 13, (1, 2, 1)))
    lengths = np.array([[[c] for c in (stats._native.totals(h)[0][0] for h in range(2))]])
    twice.update(np.concatenate([x, x], 2), lengths)
    stats.merge(stats)
    assert stats == twice
    assert stats.rows.tolist() == [[2 * rows] * 2]


def test_updates_from_several_threads_lose_nothing(rng):
    x = random_logits(rng, (2, 3, 40, 16))
    lengths = rng.integers(0, 17, (2, 3, 40))
    stats, alone = HeadStatistics((2, 3), 16, 0.1), HeadStatistics((2, 3), 16, 0.1)

    def work():
        for i in range(120):
            stats.update(x, lengths)
            if i % 40 == 7:
                stats.summary([0, 5])
                stats.merge(HeadStatistics((2, 3), 16, 0.1))
        return np.empty(0)

    from_four_threads(work)
    for _ in range(480):
        alone.update(x, lengths)
    assert stats == alone


def test_a_search_refuses_means_of_other_rows(rng):
    x = random_logits(rng, (1, 1, 20, 8))
    stats = HeadStatistics((1, 1), 8)
    stats.update(x)
    means = stats.summary([0])
    arguments = (stats._native, [0], means.mass, means.negative_entropy, means.version)
    _native.search(*arguments, 8, _native.Interruption())
    stats.update(x)
    with pytest.raises(_native.Changed):
        _native.search(*arguments, 8, _native.Interruption())


def test_a_file_written_while_rows_arrive_is_whole(rng, tmp_path):
    x = random_logits(rng, (1, 4, 100, 16))
    stats = HeadStatistics((1, 4), 16)
    stats.update(x)
    turn = iter(range(4))

    def work():
        path = tmp_path / f"{next(turn)}.safetensors"
        for _ in range(20):
            stats.update(x)
            stats.save(path)
            rows = HeadStatistics.load(path).rows
            assert (rows % 100 == 0).all() and (rows == rows.flat[0]).all()
        return np.empty(0)

    from_four_threads(work)
    assert stats.rows.tolist() == [[100 * 81] * 4]


@pytest.mark.parametrize("threads", [0, -1])
def test_the_native_code_refuses_no_threads(threads):
    x, heads = np.zeros((1, 3, 4), np.int8), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="threads"):
        _native.Statistics(4, [1.0], False).update(x, heads, None, None, None, threads)


def test_memory_is_bounded(rng):
    stats = HeadStatistics((1, 1), 64)
    for _ in range(12):
        stats.update(random_logits(rng, (1, 1, 1000, 64)))
    full = stats.memory.item()
    for _ in range(12):
        stats.update(random_logits(rng, (1, 1, 1000, 64)))
    assert stats.memory.item() == full
    # The figures that docs/calibration.md states for one length c: 1 kB * c of rows, 16 kB * c of cells; and
    # 4,096 sampled rows.
    assert full < 64 * (1100 + 16_300) + 4096 * (64 + 100) + 10_000


@pytest.mark.parametrize("rows", [50, 3000], ids=["rows kept", "rows counted"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_file_round_trip(rng, tmp_path, rows, weighted):
    stats = HeadStatistics((2, 2), 20, np.array([[0.1, 0.2], [0.3, 0.4]]), weight_unit=2 if weighted else 1)
    stats.update(
        random_logits(rng, (2, 2, rows, 20)),
        rng.integers(0, 21, (2, 2, rows)),
        weight=rng.choice([0, 0.5, 1, 2], rows) if weighted else None,
    )
    stats.save(tmp_path / "s.safetensors")
    loaded = HeadStatistics.load(tmp_path / "s.safetensors")
    assert loaded == stats
    more = random_logits(rng, (2, 2, rows, 20))
    loaded.update(more)
    stats.update(more)
    assert loaded == stats


@pytest.mark.parametrize(
    "again",
    [lambda stats: pickle.loads(pickle.dumps(stats)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_pickles_and_copies_are_equal_and_their_own(rng, again):
    x = random_logits(rng, (2, 1, 50, 9))
    stats = HeadStatistics((2, 1), 9, [[0.1], [0.2]], layers=["a", "b"], qkv_scale=np.full((2, 1, 3), 0.5))
    stats.update(x)
    other = again(stats)
    assert other == stats
    assert other.layers == ("a", "b")
    other.update(x)
    assert other.rows.sum() == 200 and stats.rows.sum() == 100


def test_names_and_operands_are_part_of_what_is_saved_and_merged(rng, tmp_path):
    def made(**noted):
        stats = HeadStatistics((2, 1), 9, **noted)
        stats.update(random_logits(np.random.default_rng(0), (2, 1, 50, 9)))
        return stats

    steps = np.array([[[0.1, 0.2, 0.3]], [[0.4, 0.5, 0.6]]])
    known = made(layers=["a", "b"], qkv_scale=steps)
    known.save(tmp_path / "s")
    loaded = HeadStatistics.load(tmp_path / "s")
    assert loaded == known != made()
    assert loaded.layers == ("a", "b") and np.array_equal(loaded.qkv_scale, steps)
    loaded.merge(made(layers=["a", "b"], qkv_scale=steps[::-1]))
    assert np.array_equal(loaded.qkv_scale, np.maximum(steps, steps[::-1]))
    with pytest.raises(DataError, match=r"the layers \('a', 'b'\); got \('b', 'a'\)"):
        known.merge(made(layers=["b", "a"]))


def inconsistent(arrays, metadata):
    """States whose parts do not belong together, each under a checksum of its own."""
    yield {**arrays, "sums": arrays["sums"][:1]}, metadata
    yield {**arrays, "sums": arrays["sums"].astype(np.int32)}, metadata
    yield {**arrays, "rows": arrays["rows"][:-1]}, metadata
    yield {**arrays, "rows": arrays["rows"].astype(np.int64)}, metadata
    for head in (-1, 2):
        index = arrays["index"].copy()
        index[0, 0] = head
        yield {**arrays, "index": index}, metadata
    index = arrays["index"].copy()
    index[:, 4] = [-1, arrays["rows"].size + 1]
    yield {**arrays, "index": index}, metadata
    yield {name: array for name, array in arrays.items() if name != "cells"}, metadata
    yield arrays, {**metadata, "n": "many"}
    yield arrays, {**metadata, "reference": "double"}


def test_parts_that_do_not_belong_together_are_refused(rng, tmp_path):
    path = tmp_path / "s.safetensors"
    stats = HeadStatistics((1, 2), 8)
    stats.update(random_logits(rng, (1, 2, 30, 8)))
    stats.save(path)
    for state in inconsistent(*FORMAT.load(path)):
        FORMAT.save(tmp_path / "forged", *state)
        with pytest.raises(FileError, match="consistent statistics"):
            HeadStatistics.load(tmp_path / "forged")


def test_equal_rows_in_any_order_are_equal_files(rng, tmp_path):
    x = random_logits(rng, (1, 2, 200, 9))
    for name, order in (("a", np.arange(200)), ("b", rng.permutation(200))):
        stats = HeadStatistics((1, 2), 9)
        stats.update(x[:, :, order])
        stats.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_damaged_files_are_refused(rng, tmp_path):
    path = tmp_path / "s.safetensors"
    stats = HeadStatistics((1, 1), 8)
    stats.update(random_logits(rng, (1, 1, 30, 8)))
    stats.save(path)
    whole = path.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "damaged"),
        (whole[:-3] + b"xyz", "checksum"),
        (whole.replace(b"hccs.HeadStatistics", b"else.HeadStatistics"), "hccs.HeadStatistics file"),
        (whole.replace(b'"n": "8"', b'"n": "4"'), "checksum"),
    ):
        path.write_bytes(content)
        with pytest.raises(FileError, match=message):
            HeadStatistics.load(path)


@pytest.mark.parametrize(
    "other",
    [{"shape": (1, 1)}, {"n": 9}, {"scale": 0.5}, {"reference": "float"}, {"weight_unit": 2}],
    ids=lambda o: next(iter(o)),
)
def test_only_like_statistics_merge(other):
    with pytest.raises(DataError, match="statistics"):
        HeadStatistics((1, 2), 8).merge(HeadStatistics(**{"shape": (1, 2), "n": 8, **other}))


@pytest.mark.parametrize(
    ("error", "x", "options", "message"),
    [
        (DtypeError, np.zeros((1, 2, 3, 8), np.int16), {}, "x of dtype int8"),
        (ShapeError, np.zeros((2, 3, 8), np.int8), {}, r"\(1, 2, rows, k\)"),
        (ShapeError, np.zeros((3, 8), np.int8), {"layer": 0}, "2 heads"),
        (ShapeError, np.zeros((1, 2, 3, 9), np.int8), {}, "at most n = 8"),
        (ParameterError, np.zeros((1, 2, 3, 8), np.int8), {"layer": 1}, "layer to be an integer from 0 to 0"),
        (MaskError, np.zeros((1, 2, 3, 8), np.int8), {"valid": np.full((1, 2, 3), 9)}, "between 0 and 8"),
        (MaskError, np.zeros((1, 2, 3, 8), np.int8), {"valid": np.ones((4, 8), bool)}, "broadcasts"),
        (DtypeError, np.zeros((1, 2, 3, 8), np.int8), {"valid": np.zeros((1, 2, 3))}, "booleans or integer"),
        (DataError, np.zeros((1, 2, 3, 8), np.int8), {"weight": -1.0}, "weights >= 0"),
        (DataError, np.zeros((1, 2, 3, 8), np.int8), {"weight": np.nan}, "finite weights"),
        (DataError, np.zeros((1, 2, 3, 8), np.int8), {"weight": 2.0**50}, "below 2"),
        (DtypeError, np.zeros((1, 2, 3, 8), np.int8), {"weight": "heavy"}, "numbers"),
    ],
)
def test_wrong_batches_are_refused(error, x, options, message):
    stats = HeadStatistics((1, 2), 8)
    with pytest.raises(error, match=message):
        stats.update(x, **options)
    assert stats.rows.sum() == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused_where_they_count(bad):
    z = np.zeros((1, 1, 2, 4), np.float32)
    z[..., 3] = bad
    stats = HeadStatistics((1, 1), 4, 0.1, reference="float")
    with pytest.raises(DataError, match="2 NaN or infinite"):
        stats.update(z)
    stats.update(z, np.full((1, 1, 2), 3))
    assert stats.rows.item() == 2
    with pytest.raises(DtypeError, match="float logits"):
        stats.update(np.zeros((1, 1, 2, 4), np.int8))


@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (ShapeError, {"shape": (0, 2)}, "layers, heads"),
        (ShapeError, {"scale": np.ones(3)}, "broadcast"),
        (ParameterError, {"scale": 0.0}, "scale > 0"),
        (ParameterError, {"scale": np.nan}, "scale > 0"),
        (ParameterError, {"reference": "double"}, "reference"),
        (ParameterError, {"weight_unit": 0}, "weight_unit"),
        (ParameterError, {"weight_unit": 2**64}, "weight_unit"),
        (ShapeError, {"layers": ["a", "b"]}, "1 different names"),
        (ShapeError, {"qkv_scale": np.ones((1, 2))}, r"qkv_scale of shape \(1, 2, 3\)"),
        (ParameterError, {"n": 0}, "n, the longest row"),
        (ParameterError, {"n": 32768}, "n = 32767 columns"),
        (ParameterError, {"n": 70_000}, "n = 32767 columns"),
    ],
)
def test_impossible_statistics_are_refused(error, options, message):
    with pytest.raises(error, match=message):
        HeadStatistics(**{"shape": (1, 2), "n": 8, **options})
