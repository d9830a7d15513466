"""No damaged file does anything but load or be refused: some hundred mutants here, 100,000 by `make fuzz`."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors

import hccs
from hccs._files.safetensors import read, write
from hccs.calibration import HeadStatistics
from hccs.calibration.files import collect_files
from hccs.errors import HccsError
from tests.files.mutants import forged, mutant

FEW = 60
ALL = 100_000


@dataclass(frozen=True)
class Subject:
    """A file, how it is damaged, and what is done with it; `same` if what loads must equal the original."""

    name: str
    save: Callable[[Path], None]
    load: Callable[[Path], object]
    same: bool = False
    damage: Callable[[bytes, random.Random], bytes] = mutant


def table() -> hccs.ParamTable:
    return hccs.ParamTable(
        B=[[444, 300], [200, 511]],
        S=[[11, 4], [1, 0]],
        D=[[40, 60], [127, 1]],
        scale=[[0.1, 0.05], [1 / 3, 2.0]],
        n=64,
        mode="u8_clb",
        provenance={"model": "tiny"},
        qkv_scale=np.linspace(0.01, 0.5, 12).reshape(2, 2, 3),
        layers=["first", "second"],
    )


def save_statistics(path: Path) -> None:
    stats = HeadStatistics((1, 2), 8, [[0.1, 0.2]], layers=["first"])
    stats.update(np.random.default_rng(0).integers(-60, 60, (1, 2, 20, 8), dtype=np.int8))
    stats.save(path)


def save_counted_statistics(path: Path) -> None:
    """Of two heads one keeps its rows, the other has counted them into cells; rows have weights."""
    stats = HeadStatistics((1, 2), 4, [[0.1, 0.2]])
    lengths = np.full((1, 2, 1200), 4)
    lengths[0, 0, 20:] = 0
    x = np.random.default_rng(0).integers(-60, 60, (1, 2, 1200, 4), dtype=np.int8)
    stats.update(x, lengths, weight=np.arange(1200) % 3)
    stats.save(path)


def save_arrays(path: Path) -> None:
    arrays = {
        "logits": np.arange(48, dtype=np.float32).reshape(1, 2, 3, 8),
        "valid": np.ones((3, 8), bool),
        "empty": np.empty((0, 3), np.int64),
        "half": np.arange(3, dtype=np.float16),
    }
    write(path, arrays, {"note": "some text"})


def save_npy(path: Path) -> None:
    np.save(path, np.random.default_rng(1).integers(-60, 60, (1, 2, 5, 8), dtype=np.int8))


def save_npz(path: Path) -> None:
    z = np.random.default_rng(1).normal(size=(1, 2, 4, 8)).astype(np.float32)
    np.savez_compressed(path, logits=z, lengths=np.full((1, 2, 4), 8), scale=[[0.1, 0.2]])


def collect(path: Path) -> HeadStatistics:
    return collect_files([path], scale=0.1)


def use(path: Path) -> HeadStatistics:
    """Load statistics and do with them what calibration does."""
    stats = HeadStatistics.load(path)
    if stats.n <= 64:
        stats.update(np.zeros((*stats.shape, 3, 1), np.int8 if stats.reference == "int8" else np.float32))
        hccs.calibrate(stats)
    return pickle.loads(pickle.dumps(stats))


SUBJECTS = (
    Subject("table.safetensors", lambda path: table().save(path), hccs.ParamTable.load, same=True),
    Subject("forged_table.safetensors", lambda path: table().save(path), hccs.ParamTable.load, damage=forged),
    Subject("statistics.safetensors", save_statistics, HeadStatistics.load, same=True),
    Subject("arrays.safetensors", save_arrays, collect),
    Subject("logits.npy", save_npy, collect),
    Subject("logits.npz", save_npz, collect),
    Subject("forged_statistics.safetensors", save_statistics, use, damage=forged),
    Subject("forged_cells.safetensors", save_counted_statistics, use, damage=forged),
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_some_mutants_load_or_are_refused(subject, tmp_path):
    outcome = attack(subject, tmp_path, FEW, seed=1)
    assert outcome["refused"] > 0


@pytest.mark.fuzz
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_all_mutants_load_or_are_refused(subject, tmp_path):
    outcome = attack(subject, tmp_path, -(-ALL // len(SUBJECTS)), seed=0)
    print(f"{subject.name}: {outcome}")


def attack(subject: Subject, folder: Path, count: int, seed: int) -> dict[str, int]:
    """Load `count` mutants of a subject; returns how many loaded and how many were refused."""
    path = folder / subject.name
    subject.save(path)
    content, intact = path.read_bytes(), subject.load(path)
    outcome = {"loaded": 0, "refused": 0}
    for index in range(count):
        damaged = subject.damage(content, random.Random(f"{subject.name} {seed} {index}"))
        path.unlink()  # arrays of the last mutant may still be mapped
        path.write_bytes(damaged)
        told = f"mutant {index} of {subject.name} by seed {seed}: {damaged[:600]!r}"
        try:
            if path.suffix == ".safetensors":
                compare_with_the_package(path, damaged)
            loaded = subject.load(path)
        except HccsError:
            outcome["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(told) from error
        assert loaded == intact or not subject.same, told
        outcome["loaded"] += 1
    return outcome


def compare_with_the_package(path: Path, content: bytes) -> None:
    """What our reader takes, the package takes too, and finds the same bytes."""
    arrays, _ = read(path)
    theirs = dict(safetensors.deserialize(content))
    assert arrays.keys() == theirs.keys()
    for name, array in arrays.items():
        assert list(array.shape) == theirs[name]["shape"]
        assert array.tobytes() == theirs[name]["data"]
