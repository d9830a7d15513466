"""CUDA graphs: work that a GPU is given once and then repeats without the host."""

from __future__ import annotations

import functools
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

    with _one_at_a_time:
        try:
            return _recorded(work, stream)
        except RuntimeError:
            # After a failure torch 2.11 draws no random numbers on this GPU until a recording ends well.
            _recorded(lambda: torch.zeros(1, device=stream.device), stream)
            raise


def _recorded(work: Callable[[], Found], stream: Any) -> tuple[Any, Found]:
    import torch

    graph = torch.cuda.CUDAGraph()
    # After a failure the first context gives the caller's stream back; the second does not. Other threads may
    # allocate meanwhile.
    with (
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        found = work()
    return graph, found


@functools.cache
def recording_stream(device: Any) -> Any:
    """A GPU's stream for recordings: one, since cuBLAS keeps memory for every stream that it has met."""
    import torch

    make: Any = torch.cuda.Stream
    return make(device)
