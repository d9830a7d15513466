"""Launches of attention's kernels; on other tensors they skip Triton's look at every argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from hccs.backends.triton.attention.tuning import Kernel, Tuning

Relaunch = Callable[..., None]
"""Launches a known kernel on tensors (q, k, v, valid, faults, result, Z) laid out like those of the first."""

DIRECT_LAUNCH_VERSIONS = (3, 6), (3, 9)
"""The first and the last Triton whose compiled kernels `_launcher` starts by their private interface. Calls
that were made before go through Triton's public launch with any other."""

_BYTES_PER_STEP = {Kernel.ONE_QUERY: (4, 4), Kernel.KEYS_IN_SHARED_MEMORY: (4, 1)}
"""The units in which kernels count the strides of q, and of k and v; 1 for the others."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """The part of a launch that shapes and parameters decide."""

    tuning: Tuning
    kernel: Any
    grid: tuple[int, ...]
    table: torch.Tensor
    sizes: tuple[int, ...]
    options: dict[str, Any]
    growing: bool = False
    """Whether the plan serves a class of lengths: the number of keys is then known at the launch alone."""

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> Relaunch | None:  # fmt: skip
        """Fill `result`, and Z where there is one; returns how to do so on other tensors, where possible."""
        numbers = self._numbers(q, k, v, places)
        of_q, of_kv = _BYTES_PER_STEP.get(self.tuning.kernel, (1, 1))
        compiled = self.kernel[self.grid](
            _in_units(q, of_q), _in_units(k, of_kv), _in_units(v, of_kv), self.table, chosen, faults, result,
            Z, *numbers, **self.options,
        )  # fmt: skip
        start, table = _launcher(compiled, self.grid), self.table
        if start is None:
            return None
        constants = _constants(self.kernel, self.options)

        def relaunch(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
            given = self._numbers(q, k, v, places) if self.growing else numbers
            tensors = q.data_ptr(), k.data_ptr(), v.data_ptr(), table.data_ptr()
            start(*tensors, chosen, faults, result.data_ptr(), Z, *given, *constants)

        return relaunch

    def _numbers(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: list[int]) -> list[int]:
        of_q, of_kv = _BYTES_PER_STEP.get(self.tuning.kernel, (1, 1))
        steps = [*_steps(q, of_q), *_steps(k, of_kv), *_steps(v, of_kv), *self.table.stride()[:2]]
        return [k.shape[2], *self.sizes, *steps, *places]


@dataclass(frozen=True, eq=False)
class SplitLaunchPlan:
    """The same for the two kernels of `split_keys`."""

    tuning: Tuning
    kernels: tuple[Any, Any]
    grid: tuple[int, int]
    table: torch.Tensor
    sizes: tuple[int, ...]
    room: int
    """int32 that the first kernel leaves for the second."""
    options: tuple[dict[str, Any], dict[str, Any]]
    growing: bool = False

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> Relaunch | None:  # fmt: skip
        """As `LaunchPlan.launch`."""
        table, room, device = self.table, self.room, q.device
        scratch = torch.empty(room, dtype=torch.int32, device=device)
        numbers = self._numbers(q, k, v, places)
        (first, second), options = self.kernels, self.options
        compiled = first[self.grid](q, k, table, chosen, faults, scratch, *numbers[0], **options[0])
        start = _launcher(compiled, self.grid)
        compiled = second[self.grid](
            v, table, chosen, faults, scratch, result, Z, *numbers[1], **options[1]
        )  # fmt: skip
        finish = _launcher(compiled, self.grid)
        if start is None or finish is None:
            return None
        constants = _constants(first, options[0]), _constants(second, options[1])

        def relaunch(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
            given = self._numbers(q, k, v, places) if self.growing else numbers
            scratch = torch.empty(room, dtype=torch.int32, device=device)
            parameters, between = table.data_ptr(), scratch.data_ptr()
            start(q.data_ptr(), k.data_ptr(), parameters, chosen, faults, between, *given[0], *constants[0])
            tensors = v.data_ptr(), parameters, chosen, faults, between, result.data_ptr(), Z
            finish(*tensors, *given[1], *constants[1])

        return relaunch

    def _numbers(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: list[int]
    ) -> tuple[list[int], list[int]]:
        sizes, rest = [k.shape[2], *self.sizes], [*self.table.stride()[:2], *places]
        return [*sizes, *_steps(q), *_steps(k), *rest], [*sizes, *_steps(v), *rest]


def _in_units(x: torch.Tensor, unit: int) -> torch.Tensor:
    return x if unit == 1 else x.view(torch.int32)


def _steps(x: torch.Tensor, unit: int = 1) -> list[int]:
    return [step // unit for step in x.stride()[:3]]


def _constants(kernel: Any, options: dict[str, Any]) -> list[Any]:
    """The compile-time arguments in the kernel's order; a compiled kernel takes their places too."""
    return [options[name] for name in kernel.arg_names if name in options]


def can_launch_directly(version: str) -> bool:
    """Whether the private interface of this Triton is one that `_launcher` was tried with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    first, last = DIRECT_LAUNCH_VERSIONS
    return found is not None and first <= (int(found[1]), int(found[2])) <= last


def _launcher(compiled: Any, grid: tuple[int, ...]) -> Callable[..., None] | None:
    """Starts a compiled kernel; None for an interpreted one, and for a Triton that was not tried.

    Addresses on the device may be numbers: Triton would ask the driver about every tensor.
    """
    if not hasattr(compiled, "packed_metadata") or not can_launch_directly(triton.__version__):
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = *grid, *[1] * (3 - len(grid))
    active = triton.runtime.driver.active
    device, stream_of = active.get_current_device(), active.get_current_stream

    def start(*arguments: Any) -> None:
        run(x, y, z, stream_of(device), function, metadata, None, None, None, *arguments)

    return start
