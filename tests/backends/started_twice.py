"""Known calls on the driver of cuda_driver.c: what they start is what Triton's own launches start.

    TRITON_LIBCUDA_PATH=FOLDER python -m tests.backends.started_twice FOLDER/libcuda.so.1

Kernels are compiled for Hopper and loaded; none runs. Prints the names of those that both ways started.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton

STREAM = 3
SIZES = {"i32": 4, "i64": 8}


class Launch(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("parameters", ctypes.c_uint64 * 64),
    ]


class Driver:
    """The library; once it is loaded, Triton finds it by its name."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self._library.hccs_launch.restype = ctypes.POINTER(Launch)

    def started(self, work: Callable[[], Any]) -> list[tuple[Any, ...]]:
        """The launches of a call."""
        before = self._library.hccs_launch_count()
        work()
        found = [self._library.hccs_launch(i)[0] for i in range(before, self._library.hccs_launch_count())]
        return [(x.function, x.stream, *x.grid, *x.block, x.shared, *x.parameters[: x.count]) for x in found]

    def expect(self, compiled: Any) -> None:
        """The parameters of a kernel, and the addresses of scratch that Triton adds."""
        kinds = [kind for kind in compiled.src.signature.values() if kind != "constexpr"]
        sizes = [8 if kind[0] == "*" else SIZES[kind] for kind in [*kinds, "i64", "i64"]]
        given = (ctypes.c_int * len(sizes))(*sizes)
        self._library.hccs_expect(ctypes.c_uint64(compiled.function), len(sizes), given)


def pretend_hopper() -> None:
    from triton.backends.nvidia.driver import CudaDriver

    from hccs.backends.triton import quantise
    from hccs.backends.triton.attention import launch, plans

    active = CudaDriver()
    active.get_current_device = lambda: 0
    active.get_current_stream = lambda device: STREAM
    active.get_device_capability = lambda device: (9, 0)
    triton.runtime.driver.set_active(active)
    torch.cuda.current_device = lambda: None  # that of tensors on the host
    plans.capability = lambda device: (9, 0)
    plans.multiprocessors = lambda device: 132
    launch.made_current = quantise.made_current = lambda device: contextlib.nullcontext()


def compare(driver: Driver, known: dict[Any, Any], call: Callable[[], Any], again: Callable[[], Any]) -> None:
    """What a call that is not known starts, and what it starts once it is."""

    def unknown() -> None:
        known.clear()
        call()

    unknown()  # compiles, and tells the driver of the kernels
    first = driver.started(unknown)
    assert len(known) == 1
    second = driver.started(again)
    assert first == second, (first, second)
    assert first and all(launch[1] == STREAM and len(launch) > 12 for launch in first)


def attention(driver: Driver, nq: int, nk: int, lengths: bool) -> None:
    import hccs
    from hccs.backends.triton.attention import launch, launch_plan
    from hccs.ops import arguments

    theta, requant = hccs.HeadParams([30] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v = (torch.zeros(2, 4, n, 64, dtype=torch.int8) for n in (nq, nk, nk))
    result, scratch = torch.zeros(2, 4, nq, 64), torch.zeros(1 << 16, dtype=torch.int32)
    valid = torch.tensor([[[5]], [[nk]]], dtype=torch.int32) if lengths else None
    masking = arguments.LENGTHS if lengths else arguments.NO_MASK
    causal = nk == 1024
    # What every call allocates is the same, so that addresses can be compared.
    launch.results = lambda q, out: (result, None)
    launch_plan.LaunchPlan._scratch = lambda self, device: scratch if self.room else None

    def call() -> None:
        launch.attention(q, k, v, theta, requant, masking, valid, causal)

    def again() -> None:
        ((relaunch, *_),) = launch._known.values()
        relaunch(q, k, v, valid, launch.fault_bytes(q.device) if lengths else None, result, None)

    compare(driver, launch._known, call, again)


def quantised(driver: Driver) -> None:
    from hccs.backends.triton import quantise

    part = torch.zeros(2, 4, 9, 64), torch.ones(4), torch.zeros(2, 4, 9, 64, dtype=torch.int8)

    def call() -> None:
        quantise.by_factors([part, part])

    compare(driver, quantise._known, call, call)


def main(path: str) -> None:
    driver = Driver(path)
    pretend_hopper()
    from hccs.backends.triton import quantise
    from hccs.backends.triton.attention import launch_plan

    launcher, names = launch_plan.launcher, []

    def noted(compiled: Any, grid: Any) -> Any:
        driver.expect(compiled)
        names.append(compiled.metadata.name)
        return launcher(compiled, grid)

    launch_plan.launcher = quantise.launcher = noted
    quantised(driver)
    for nq, nk, lengths in ((100, 128, True), (1, 4096, True), (256, 256, False), (1024, 1024, False)):
        attention(driver, nq, nk, lengths)
    print(*dict.fromkeys(names))


if __name__ == "__main__":
    main(sys.argv[1])
