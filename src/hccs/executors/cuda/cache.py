"""`DeviceCache`: keys and values on the device; `CachedSpace`: where the values of new tokens lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hccs.executors.cuda.space import Room, Space
from hccs.program.cache import Cache
from hccs.program.plan import ProgramPlan
from hccs.program.program import Program


class DeviceCache(Cache):
    """A `Cache` whose memory is a tensor; its capacity is a multiple of `alignment`."""

    def __init__(
        self, program: Program, sequences: int, device: str, where: torch.device, alignment: int
    ) -> None:
        self._where, self._multiple = where, alignment
        super().__init__(program, sequences, device)

    def _zeros(self, size: int) -> Any:
        with torch.inference_mode(False):  # or no call outside the caller's could write there
            return torch.zeros(size, dtype=torch.int8, device=self._where)

    def _given(self, rows: NDArray[np.int8]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self._where)

    def _read(self, rows: Any) -> NDArray[np.int8]:
        found: NDArray[np.int8] = rows.cpu().numpy()
        return found


@dataclass(frozen=True)
class NewTokens:
    """`counts` new tokens of every text, one after the other; texts have numbers in the cache."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    texts: NDArray[np.int64]
    cache: DeviceCache

    @property
    def room(self) -> Room:
        """Their class. Single tokens, a step of generation, are one of their own."""
        longest = int(self.counts.max())
        room = Room.of(len(self.ids), len(self.counts), longest)
        return replace(room, longest=1) if longest == 1 else room


class CachedSpace(Space):
    """The space of new tokens: positions go on behind past ones, and first rows are those of last tokens.

    Nothing that a launch is given depends on the cache, so that a graph serves them all.
    """

    def __init__(
        self, room: Room, plan: ProgramPlan, memory: Mapping[Any, torch.Tensor], answer_width: int
    ) -> None:
        super().__init__(room, plan, memory, False, answer_width, None)
        self.firsts = self.lasts
        self._geometry, past, texts = (
            self._inputs[self._places[name]] for name in ("geometry", "past", "texts")
        )
        self._cached = {"starts": self.starts, "past": past, "texts": texts, "longest": room.longest}

    def _sizes(self) -> dict[str, int]:
        # Behind those of other spaces, so that these keep the alignment that kernels are compiled for.
        # The geometry are three integers of 64 bits.
        own = {"geometry": 6, "past": self.room.sequences, "texts": self.room.sequences}
        return {**super()._sizes(), **own}

    def fill_new(self, new: NewTokens, cached: type) -> None:
        """New tokens, and where their cache lies."""
        cache, past = new.cache, new.cache.lengths[new.texts]
        # Addresses count from a tensor that the launches know, wherever the cache lies. In Triton's
        # interpreter a kernel may touch no other tensors than its own.
        origin = self._inputs.view(torch.int8) if self._inputs.is_cuda else cache.memory
        offset = cache.memory.data_ptr() - origin.data_ptr()
        self.cached = cached(origin, self._geometry.view(torch.int64), **self._cached)
        values = self._packed(new.ids, np.zeros_like(new.ids), new.counts)
        self._write({
            **values,
            "geometry": np.array([offset, cache.capacity, cache.sequences]).view(np.int32),
            "positions": values["positions"] + np.repeat(past, new.counts),
            "past": past,
            "texts": new.texts,
        })  # fmt: skip
