"""CUDA graphs: work that a GPU is given once and then repeats without the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")

_one_at_a_time = threading.Lock()
"""Torch records one graph at a time in a process."""


def recorded(work: Callable[[], Found], stream: Any) -> tuple[Any, Found]:
    """The graph of the kernels that `work` starts, recorded on a stream, and what it returned.

    Nothing runs yet. Every kernel must have been compiled, and `work` must not wait for the GPU: torch raises
    RuntimeError then.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    # After a failure the first context gives the caller's stream back; the second does not. Other threads may
    # allocate meanwhile.
    with (
        _one_at_a_time,
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        found = work()
    return graph, found
