"""Several processes: those of one run, as `accelerate launch` starts them, and a pool for work that shares
nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from hccs._extras import require
from hccs._progress import track

Item = TypeVar("Item")


def state() -> Any:
    """accelerate's view of the processes of this run; one process is its usual case."""
    accelerate = require("accelerate", "hf")
    import torch

    # Without `cpu` accelerate joins processes only where it finds accelerators.
    return accelerate.PartialState(cpu=not torch.cuda.is_available())


def in_processes(work: Callable[[Item], None], items: Sequence[Item], jobs: int, description: str) -> None:
    """Do the work on every item, `jobs` processes at a time: one small model cannot keep a GPU busy."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        waiting = [pool.submit(work, item) for item in items]
        for done in track(as_completed(waiting), total=len(waiting), description=description):
            done.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
