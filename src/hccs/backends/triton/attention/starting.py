"""Starting the kernels of attention, and once more on other tensors, past Triton's look at every argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from hccs.backends.triton.attention.tiles import Tile

Again = Callable[..., None]
"""The launch of tensors (q, k, v, valid, faults, result, Z) laid out like those of the first."""


@dataclass(frozen=True, eq=False)
class Plan:
    """All of a launch that shapes and parameters decide."""

    tile: Tile
    kernel: Any
    grid: tuple[int, ...]
    table: torch.Tensor
    sizes: tuple[int, ...]
    options: dict[str, Any]

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> Again | None:  # fmt: skip
        """Fill `result`, and Z where there is one; how to do so again, where that is known."""
        steps = *self.table.stride()[:2], *places
        prepared = self._prepared(q, k, v, result)
        numbers = *self.sizes, *prepared[2].stride()[:3], *steps
        if not self.tile.prefetched:
            numbers = *self.sizes, *(step for x in prepared[:3] for step in x.stride()[:3]), *steps
        compiled = self.kernel[self.grid](
            *prepared[:3], self.table, chosen, faults, prepared[3], Z, *numbers, **self.options
        )
        rest = *numbers, *_constants(self.kernel, self.options)
        start, table = _launcher(compiled, self.grid), self.table
        if start is None:
            return None
        if self.tile.prefetched:

            def again(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
                q, k, v, result = self._prepared(q, k, v, result)
                start(q, k, v, table, chosen, faults, result, Z, *rest)

        else:

            def again(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
                places = q.data_ptr(), k.data_ptr(), v.data_ptr(), table.data_ptr()
                start(*places, chosen, faults, result.data_ptr(), Z, *rest)

        return again

    def _prepared(self, q: Any, k: Any, v: Any, result: Any) -> tuple[Any, Any, Any, Any]:
        """What the kernel takes for q, k, v and the result."""
        if self.tile.single:
            return q.view(torch.int32), k.view(torch.int32), v.view(torch.int32), result
        if self.tile.held:
            return q.view(torch.int32), k, v, result
        if not self.tile.prefetched:
            return q, k, v, result
        rows = self.tile.rows
        return _tiles(q, rows), _tiles(k, self.tile.keys), v.view(torch.int32), _tiles(result, rows)


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """The same for the two kernels of few queries."""

    tile: Tile
    kernels: tuple[Any, Any]
    grid: tuple[int, int]
    table: torch.Tensor
    sizes: tuple[int, ...]
    room: int
    logits: dict[str, Any]
    sums: dict[str, Any]

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor | None,
        faults: torch.Tensor | None, places: list[int], result: torch.Tensor, Z: torch.Tensor | None,
    ) -> Again | None:  # fmt: skip
        """As `Plan.launch`."""
        table, room, device = self.table, self.room, q.device
        scratch = torch.empty(room, dtype=torch.int32, device=device)
        first, second = self.kernels
        steps, one = table.stride()[:2], self.tile.single
        if one:
            q, k, v = q.view(torch.int32), k.view(torch.int32), v.view(torch.int32)
        of_logits = *self.sizes, *q.stride()[: 2 if one else 3], *k.stride()[:3], *steps, *places
        of_sums = *self.sizes, *v.stride()[:3], *steps, *(() if one else places)
        selected = () if one else (chosen, faults)
        compiled = first[self.grid](q, k, table, chosen, faults, scratch, *of_logits, **self.logits)
        start = _launcher(compiled, self.grid)
        compiled = second[self.grid](v, table, *selected, scratch, result, Z, *of_sums, **self.sums)
        finish = _launcher(compiled, self.grid)
        if start is None or finish is None:
            return None
        of_logits = *of_logits, *_constants(first, self.logits)
        of_sums = *of_sums, *_constants(second, self.sums)

        def again(q: Any, k: Any, v: Any, chosen: Any, faults: Any, result: Any, Z: Any) -> None:
            scratch = torch.empty(room, dtype=torch.int32, device=device)
            parameters, between = table.data_ptr(), scratch.data_ptr()
            start(q.data_ptr(), k.data_ptr(), parameters, chosen, faults, between, *of_logits)
            if one:
                finish(v.data_ptr(), parameters, between, result.data_ptr(), Z, *of_sums)
            else:
                finish(v.data_ptr(), parameters, chosen, faults, between, result.data_ptr(), Z, *of_sums)

        return again


def _constants(kernel: Any, options: dict[str, Any]) -> list[Any]:
    """The compile-time arguments in the kernel's order, which a compiled kernel is given too."""
    return [options[name] for name in kernel.arg_names if name in options]


def _launcher(compiled: Any, grid: tuple[int, ...]) -> Callable[..., None] | None:
    """Of a compiled kernel, past Triton's look at every argument; None for the interpreter's.

    Addresses on the device may come as numbers: the driver is asked about every tensor.
    """
    if not hasattr(compiled, "packed_metadata"):
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = *grid, *[1] * (3 - len(grid))
    active = triton.runtime.driver.active
    device, stream_of = active.get_current_device(), active.get_current_stream

    def start(*arguments: Any) -> None:
        run(x, y, z, stream_of(device), function, metadata, None, None, None, *arguments)

    return start


def _tiles(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """The heads in tiles of `rows`."""
    steps = [step if size > 1 else 16 for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)]
    return TensorDescriptor(x, [*x.shape], [*steps, 1], [1, 1, rows, x.shape[-1]])
