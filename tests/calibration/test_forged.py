"""Statistics files with a right checksum and wrong contents: refused, or statistics that work."""

from __future__ import annotations

import numpy as np
import pytest

from hccs.calibration import HeadStatistics, search
from hccs.calibration.state import FORMAT
from hccs.errors import FileError
from tests.calibration.conftest import random_logits

COLUMNS = ("head", "length", "count", "weight", "rows", "weights", "cells")


def forge(path, arrays, metadata):
    """A file whose checksum is right, whatever it holds."""
    FORMAT.save(path, arrays, metadata)


@pytest.fixture(params=["int8", "float", "weighted"])
def genuine(request, rng, tmp_path):
    """The arrays and metadata of a file with kept and counted rows."""
    reference = "float" if request.param == "float" else "int8"
    stats = HeadStatistics((1, 2), 6, 0.1, reference=reference)
    x = random_logits(rng, (1, 2, 1100, 6))
    lengths = np.concatenate([np.full(1050, 5), rng.integers(1, 7, 50)])
    weight = rng.integers(1, 4, 1100) if request.param == "weighted" else None
    stats.update(x if reference == "int8" else x * np.float32(0.1), lengths[None, None], weight=weight)
    stats.save(tmp_path / "genuine")
    arrays, metadata = FORMAT.load(tmp_path / "genuine")
    return {name: array.copy() for name, array in arrays.items()}, metadata


def use(stats):
    """Everything that reads or writes the restored structures."""
    stats.merge(stats)
    rows = np.zeros((1, 2, 1100, 6), np.int8 if stats.reference == "int8" else np.float32)
    stats.update(rows, np.arange(1100)[None, None] % 6 + 1)
    search(stats, n=600, threads=1)  # few triples are admissible there, and all of them read the rows
    assert stats == stats


def test_what_was_not_forged_loads(genuine, tmp_path):
    forge(tmp_path / "same", *genuine)
    use(HeadStatistics.load(tmp_path / "same"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("head", -1), ("head", 2), ("length", 0), ("length", -3), ("length", 7), ("length", 2**40),
        ("count", 0), ("count", 2**62), ("weight", 0), ("weight", -1), ("weight", 1), ("weight", 2**63 - 1),
        ("rows", -6), ("rows", 2**40), ("weights", 1), ("cells", -2), ("cells", 0), ("cells", 2),
    ],
)  # fmt: skip
def test_a_wrong_index_is_refused(genuine, tmp_path, column, value):
    arrays, metadata = genuine
    original = arrays["index"].copy()
    for entry in range(len(original)):
        arrays["index"] = original.copy()
        if arrays["index"][entry, COLUMNS.index(column)] == value:
            continue
        arrays["index"][entry, COLUMNS.index(column)] = value
        forge(tmp_path / "forged", arrays, metadata)
        with pytest.raises(FileError, match="consistent statistics"):
            HeadStatistics.load(tmp_path / "forged")


def test_wrong_contents_are_refused(genuine, tmp_path):
    arrays, metadata = genuine
    counted = arrays["index"][:, 6] > 0
    assert counted.any() and not counted.all()

    def without_maximum(of):
        of["rows"][:] = np.maximum(of["rows"], 1)

    def a_row_more(of):
        of["cells"][0] += 1

    def a_row_elsewhere(of):
        first = int(np.flatnonzero(of["cells"])[0])
        of["cells"][first] -= 1

    def negative_weights(of):
        of["weights"] = np.full_like(of["weights"], -5) if of["weights"].size else np.array([-5])

    def more_mass(of):
        of["sums"][0, 0] += 1 << 20

    def no_mass(of):
        of["sums"][1] = 0

    def negative_mass(of):
        of["sums"][0, 2] = -1

    def huge_logarithm(of):
        of["sums"][0, -2] = 2**62

    def swapped_entries(of):
        of["index"] = of["index"][::-1].copy()

    def an_entry_twice(of):
        of["index"] = np.concatenate([of["index"], of["index"][:1]])

    def rows_of_nobody(of):
        of["rows"] = np.concatenate([of["rows"], of["rows"][:6]])

    def another_dtype(of):
        of["rows"] = of["rows"].astype(np.int64)

    def heads_missing(of):
        of["sums"] = of["sums"][:1].copy()

    def heads_too_many(of):
        of["sums"] = np.concatenate([of["sums"], of["sums"]])

    def flat_sums(of):
        of["sums"] = of["sums"].reshape(-1).copy()

    for change in (
        without_maximum, a_row_more, a_row_elsewhere, negative_weights, more_mass, no_mass, negative_mass,
        huge_logarithm, swapped_entries, an_entry_twice, rows_of_nobody, another_dtype, heads_missing,
        heads_too_many, flat_sums,
    ):  # fmt: skip
        forged = {name: array.copy() for name, array in arrays.items()}
        change(forged)
        forge(tmp_path / "forged", forged, metadata)
        with pytest.raises(FileError, match="consistent statistics"):
            HeadStatistics.load(tmp_path / "forged")
            pytest.fail(change.__name__)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", "0"), ("n", "5"), ("n", "70000"), ("n", "6.5"), ("reference", "double"), ("weight_unit", "0")],
)
def test_wrong_metadata_is_refused(genuine, tmp_path, name, value):
    arrays, metadata = genuine
    forge(tmp_path / "forged", arrays, {**metadata, name: value})
    with pytest.raises(FileError):
        HeadStatistics.load(tmp_path / "forged")


def test_random_forgeries_are_refused_or_work(genuine, rng, tmp_path):
    arrays, metadata = genuine
    refused = 0
    for _ in range(150):
        forged = {name: array.copy() for name, array in arrays.items()}
        for _ in range(rng.integers(1, 4)):
            name = rng.choice(["index", "index", "sums", "rows", "weights", "cells"])
            flat = forged[name].reshape(-1)
            if flat.size == 0:
                continue
            at = rng.integers(flat.size)
            raw = flat[at : at + 1].view(np.uint8)
            raw[rng.integers(raw.size)] ^= 1 << rng.integers(8)
        if rng.random() < 0.3:
            name = rng.choice(["rows", "weights", "cells", "index", "sums"])
            forged[name] = forged[name][: rng.integers(len(forged[name]) + 1)].copy()
        forge(tmp_path / "forged", forged, metadata)
        try:
            stats = HeadStatistics.load(tmp_path / "forged")
        except FileError:
            refused += 1
            continue
        use(stats)
    assert refused > 75
