"""A GPU that is not there: scripts written for one run on the host, their kernels in Triton's interpreter.

Every tensor says that it lies on cuda:0, and lies on the host. A graph records what is called while it is
captured, and calls it again. Nothing that waits for another part of a GPU is looked at.
"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
UNWRITTEN, GARBAGE = (torch.empty, torch.empty_like, torch.Tensor.new_empty), 77
"""What these return holds something, but never by chance the answer of a call before."""

WAITING = {
    getattr(torch.Tensor, name)
    for name in ("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "nonzero", "tolist")
}
"""What needs values on the host: a recording has none."""
SIZED = {torch.arange, torch.empty, torch.ones, torch.zeros}
"""What needs them where its size is a tensor."""


class OnTheHost(TorchFunctionMode):
    """Calls of torch without a GPU, whatever device they name."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Any] | None = None
        self.failed = False
        """Whether the latest recording did."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.device:  # a name, and no tensor yet
            return function(*args, **(kwargs or {}))
        kwargs = {name: at_home(x) for name, x in (kwargs or {}).items() if name != "pin_memory"}
        return self.called(function, [*map(at_home, args)], kwargs)

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        sized = function in SIZED and any(isinstance(x, torch.Tensor) for x in tree_leaves(args))
        if self.recorded is not None and (sized or function in WAITING):
            raise RuntimeError("operation not permitted when stream is capturing")
        recorded, self.recorded = self.recorded, None  # what it calls is a part of it
        try:
            found = function(*args, **kwargs)
        finally:
            self.recorded = recorded
        if function in UNWRITTEN:
            found.fill_(GARBAGE)
        if recorded is not None:
            recorded.append((function, args, kwargs, found))
        return found


def at_home(given: Any) -> Any:
    named = type(given) is torch.device or type(given) is str
    return "cpu" if named and str(given).startswith("cuda") else given


class Graph:
    """Calls, whose results are written where they were."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @torch.inference_mode()  # or it could not write into tensors of that mode
    def replay(self) -> None:
        for function, args, kwargs, found in self.calls:
            again = function(*args, **kwargs)
            for new, old in zip(tree_leaves(again), tree_leaves(found), strict=True):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class Stream:
    device, cuda_stream = GPU, 0

    def __init__(self, *given: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


def timed(work: Any, **options: Any) -> float:
    """Milliseconds of the second of two calls, as triton.testing's functions tell them."""
    work()
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


@contextlib.contextmanager
def pretended(monkeypatch: Any) -> Any:
    """Torch with such a GPU, and Triton's interpreter with it."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    from hccs.backends.triton import faults, program

    host, run = OnTheHost(), InterpretedFunction.run

    @contextlib.contextmanager
    def captured(graph: Graph, **options: Any) -> Any:
        host.recorded, host.failed = graph.calls, True
        try:
            yield
            host.failed = False
        finally:
            host.recorded = None

    # An interpreted kernel computes outside of torch, so that it is recorded as a whole.
    monkeypatch.setattr(InterpretedFunction, "run", lambda *args, **kwargs: host.called(run, args, kwargs))
    monkeypatch.setattr(faults, "_marked", {})  # or later calls would wait for this GPU
    monkeypatch.setattr(program, "INTERPRETED", False)  # or the engine takes the host
    monkeypatch.setattr(torch.Tensor, "device", property(lambda _: GPU), raising=False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    for name in ("do_bench", "do_bench_cudagraph"):
        monkeypatch.setattr(triton.testing, name, timed)
    for name, instead in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "device": lambda _: contextlib.nullcontext(),
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_capability": lambda *_: (0, 0),  # of which nothing is known
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=1),
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: host.recorded is not None,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph": captured,
    }.items():
        monkeypatch.setattr(torch.cuda, name, instead)
    with host:
        yield host
