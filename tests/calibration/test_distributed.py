from __future__ import annotations

import sys

import numpy as np
import pytest

from hccs.calibration import HeadStatistics
from hccs.errors import DataError
from tests.calibration.conftest import random_logits

torch = pytest.importorskip("torch")


def process(rank: int, folder: str) -> None:
    """One of two processes: its half of the data, then the sum of both."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    data = np.load(f"{folder}/x.npy")[:, :, rank::2]
    stats = HeadStatistics((1, 3), 16, 0.1)
    stats.update(data)
    stats.all_reduce()
    stats.save(f"{folder}/{rank}.safetensors")
    np.save(f"{folder}/said{rank}.npy", refusals(rank))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The folder in which two processes left what they ended with, and their data."""
    if sys.platform == "win32":
        pytest.skip("gloo over a file")
    folder = tmp_path_factory.mktemp("processes")
    # Enough rows that each process keeps its own and only the sum is counted.
    x = random_logits(np.random.default_rng(20261115), (1, 3, 1800, 16))
    np.save(folder / "x.npy", x)
    torch.multiprocessing.spawn(process, args=(str(folder),), nprocs=2)
    return folder, x


def test_two_processes_end_with_the_statistics_of_all_rows(processes):
    folder, x = processes
    whole = HeadStatistics((1, 3), 16, 0.1)
    whole.update(x)
    for rank in range(2):
        assert HeadStatistics.load(folder / f"{rank}.safetensors") == whole


def refusals(rank: int) -> list[str]:
    """What a process is told whose statistics are unlike the other's."""
    said = []
    for other in (
        {"n": 24},
        {"scale": 0.2},
        {"scale": [[0.1, 0.1, 0.3]]},
        {"weight_unit": 4},
        {"shape": (3, 1)},
    ):
        options = {"shape": (1, 3), "n": 16, "scale": 0.1, **(other if rank else {})}
        stats = HeadStatistics(**options)
        stats.update(np.zeros((*options["shape"], 5, 16), np.int8))
        with pytest.raises(DataError) as refused:
            stats.all_reduce()
        said.append(str(refused.value))
        assert stats.rows.sum() == 15
    return said


def test_every_process_refuses_statistics_that_cannot_be_added(processes):
    folder, _ = processes
    said = [np.load(folder / f"said{rank}.npy").tolist() for rank in range(2)]
    assert said[0] == said[1]
    assert [words.split("have the ")[1].split()[0] for words in said[0]] == [
        "n", "scale", "scale", "weight_unit", "shape",
    ]  # fmt: skip


def test_all_reduce_without_a_process_group_says_so():
    with pytest.raises(DataError, match="init_process_group"):
        HeadStatistics((1, 1), 8).all_reduce()
