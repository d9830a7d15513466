"""Launches of attention's kernels; on other tensors they skip Triton's look at every argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from hccs._extras import is_tried_triton
from hccs.backends.triton.attention.tuning import Kernel, Tuning

Relaunch = Callable[..., None]
"""Launches a known kernel on tensors (q, k, v, valid, faults, result, Z) laid out like those of the first."""

_BYTES_PER_STEP = {Kernel.ONE_QUERY: (4, 4), Kernel.KEYS_IN_SHARED_MEMORY: (4, 1)}
"""The units in which kernels count the strides of q, and of k and v; 1 for the others."""


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """A kernel, its compile-time arguments and options, and the names of its tensors in its order."""

    kernel: Any
    options: dict[str, Any]
    tensors: tuple[str, ...] = ("q", "k", "v", "table", "valid", "faults", "result", "Z")

    @property
    def constants(self) -> list[Any]:
        """The compile-time arguments in the kernel's order; a compiled kernel takes their places too."""
        return [self.options[name] for name in self.kernel.arg_names if name in self.options]


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """The part of a call that shapes and parameters decide: one kernel, or two that share scratch."""

    tuning: Tuning
    launches: tuple[KernelLaunch, ...]
    grid: tuple[int, ...]
    table: torch.Tensor
    sizes: tuple[int, ...]
    growing: bool = False
    """Whether the plan serves a class of lengths: the number of keys is then known at the launch alone."""
    room: int = 0
    """int32 of scratch."""

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> Relaunch | None:  # fmt: skip
        """Fill `result`, and Z where there is one; returns how to do so on other tensors, where possible."""
        numbers = self._numbers(q, k, v, places)
        of_q, of_kv = _BYTES_PER_STEP.get(self.tuning.kernel, (1, 1))
        given = dict(
            q=_in_units(q, of_q), k=_in_units(k, of_kv), v=_in_units(v, of_kv), table=self.table,
            valid=chosen, faults=faults, scratch=self._scratch(q.device), result=result, Z=Z,
        )  # fmt: skip
        starts = []
        for own, rest in zip(self.launches, numbers, strict=True):
            tensors = [given[name] for name in own.tensors]
            compiled = own.kernel[self.grid](*tensors, k.shape[2], *rest, **own.options)
            start = launcher(compiled, self.grid)
            if start is not None:
                starts.append((start, own.tensors, own.constants))

        # One value, so that threads may share it.
        seen = (q.stride(), k.stride(), v.stride()), numbers

        def relaunch(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
            nonlocal seen
            layout, numbers = seen
            if self.growing and layout != (q.stride(), k.stride(), v.stride()):
                numbers = self._numbers(q, k, v, places)
                seen = (q.stride(), k.stride(), v.stride()), numbers
            keys, scratch = k.shape[2], self._scratch(q.device)  # held until all kernels are started
            given = dict(
                q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), table=self.table.data_ptr(), valid=chosen,
                faults=faults, scratch=None if scratch is None else scratch.data_ptr(),
                result=result.data_ptr(), Z=Z,
            )  # fmt: skip
            for (start, names, constants), rest in zip(starts, numbers, strict=True):
                start(*[given[name] for name in names], keys, *rest, *constants)

        return relaunch if len(starts) == len(self.launches) else None

    def _scratch(self, device: torch.device) -> torch.Tensor | None:
        return torch.empty(self.room, dtype=torch.int32, device=device) if self.room else None

    def _numbers(self, q: Any, k: Any, v: Any, places: list[int]) -> list[list[int]]:
        of_q, of_kv = _BYTES_PER_STEP.get(self.tuning.kernel, (1, 1))
        steps = {"q": _steps(q, of_q), "k": _steps(k, of_kv), "v": _steps(v, of_kv)}
        rest = [*self.table.stride()[:2], *places]
        return [
            [*self.sizes, *(step for name in own.tensors for step in steps.get(name, ())), *rest]
            for own in self.launches
        ]


def _in_units(x: torch.Tensor, unit: int) -> torch.Tensor:
    return x if unit == 1 else x.view(torch.int32)


def _steps(x: torch.Tensor, unit: int) -> list[int]:
    return [step // unit for step in x.stride()[:3]]


def launcher(compiled: Any, grid: tuple[int, ...]) -> Callable[..., None] | None:
    """Starts a compiled kernel; None for an interpreted one, and for a Triton that was not tried.

    Addresses on the device may be numbers: Triton would ask the driver about every tensor.
    """
    if not hasattr(compiled, "packed_metadata") or not is_tried_triton(triton.__version__):
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = *grid, *[1] * (3 - len(grid))
    active = triton.runtime.driver.active
    device, stream_of = active.get_current_device(), active.get_current_stream

    def start(*arguments: Any) -> None:
        run(x, y, z, stream_of(device), function, metadata, None, None, None, *arguments)

    return start
