from __future__ import annotations

import sys

import numpy as np
import pytest

from hccs.calibration import HeadStatistics, LogitRange
from hccs.errors import DataError
from tests.calibration.conftest import random_logits

torch = pytest.importorskip("torch")


def process(rank: int, folder: str) -> None:
    """One of two processes: its half of the data, then the sum of both."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    data = np.load(f"{folder}/x.npy")[:, :, rank::2]
    stats, extremes = HeadStatistics((1, 3), 16, 0.1), LogitRange((1, 3))
    stats.update(data)
    extremes.update(data.astype(np.float32))
    stats.all_reduce()
    extremes.all_reduce()
    stats.save(f"{folder}/{rank}.safetensors")
    np.save(f"{folder}/range{rank}.npy", extremes.max_abs)
    dist.destroy_process_group()


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
def test_two_processes_end_with_the_statistics_of_all_rows(rng, tmp_path):
    # Enough rows that each process keeps its own and only the sum is counted.
    x = random_logits(rng, (1, 3, 1800, 16))
    np.save(tmp_path / "x.npy", x)
    torch.multiprocessing.spawn(process, args=(str(tmp_path),), nprocs=2)
    whole = HeadStatistics((1, 3), 16, 0.1)
    whole.update(x)
    for rank in range(2):
        assert HeadStatistics.load(tmp_path / f"{rank}.safetensors") == whole
        assert np.array_equal(np.load(tmp_path / f"range{rank}.npy"), abs(x.astype(float)).max((2, 3)))


def test_all_reduce_without_a_process_group_says_so():
    with pytest.raises(DataError, match="init_process_group"):
        HeadStatistics((1, 1), 8).all_reduce()
    with pytest.raises(DataError, match="init_process_group"):
        LogitRange((1, 1)).all_reduce()
