"""`Room`: a class of batches that share launches; `Space`: where the values of a class lie on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hccs.program.plan import ProgramPlan, Step

SMALLEST = 16
TILE = 128
"""Beyond it rows come in whole tiles of linear layers; below it they are powers of two."""

DTYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Room:
    """The most tokens, sequences and tokens of a sequence: four classes for each power of two of tokens.

    Programs of a launch that lie beyond the true numbers end at once, so that generous classes cost little.
    """

    tokens: int
    sequences: int
    longest: int

    @classmethod
    def of(cls, tokens: int, sequences: int, longest: int) -> Room:
        whole = _power(max(tokens, SMALLEST))
        step = max(whole // 8, TILE)
        rows = whole if whole <= TILE else -(-tokens // step) * step
        return cls(rows, _power(max(sequences, SMALLEST)), _power(max(longest, SMALLEST)))

    @property
    def rows(self) -> int:
        return max(self.tokens, self.sequences)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


class Space:
    """The tensors of a class of batches: views of the engine's memory, and inputs of its own.

    `every_token` says that first rows are those of all tokens: a causal program with scores of every one.
    """

    def __init__(
        self, room: Room, plan: ProgramPlan, memory: Mapping[Any, torch.Tensor], every_token: bool,
        answer_width: int, images: torch.Tensor | None,
    ) -> None:  # fmt: skip
        self.room, self.answer_width, self.images = room, answer_width, images
        device = memory["arena"].device
        firsts = room.tokens if every_token else room.sequences
        self._first_room = firsts
        self._values = {}
        for name, slot in plan.slots.items():
            dtype = DTYPES[plan.values[name].bits]
            begin = slot.offset * room.rows
            flat = memory[slot.pool][begin : begin + slot.size * room.rows]
            value = flat.view(room.rows, slot.size).view(dtype)
            self._values[name] = value[: room.tokens if slot.all_rows else firsts]
        sizes = self._sizes()
        ends = np.cumsum(list(sizes.values()))
        self._places = {
            name: slice(int(end) - size, int(end))
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        self._inputs = torch.zeros(int(ends[-1]), dtype=torch.int32, device=device)
        parts = {name: self._inputs[place] for name, place in self._places.items()}
        self.counts, self.ids, self.types = parts["counts"], parts["ids"], parts["types"]
        self.positions, self.sequences = parts["positions"], parts["sequences"]
        self.starts, self.lasts = parts["starts"], parts["lasts"]
        self.first_starts = self.starts if every_token else parts["ones"]
        self.firsts = None if every_token else self.starts
        self._count_of_firsts = self.counts[:1] if every_token else self.counts[1:]

    cached: Any = None
    """What `attention_over_cache` reads of a cache, where there is one."""

    def _sizes(self) -> dict[str, int]:
        """The inputs, and how many integers each has."""
        tokens, sequences = self.room.tokens, self.room.sequences
        return {
            "counts": 2, "ids": tokens, "types": tokens, "positions": tokens, "sequences": tokens,
            "lasts": sequences, "starts": sequences + 1, "ones": sequences + 1,
        }  # fmt: skip

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._values[name]

    def rows(self, step: Step) -> tuple[torch.Tensor, int]:
        """How many rows a step has, in device memory, and for how many there is room."""
        if step.all_rows:
            return self.counts[:1], self.room.tokens
        return self._count_of_firsts, self._first_room

    def fill(self, ids: NDArray[Any], types: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """A batch whose tokens lie one after the other, from the host by one copy."""
        self._write(self._packed(ids, types, lengths))

    def _packed(self, ids: NDArray[Any], types: NDArray[Any], lengths: NDArray[np.int64]) -> dict[str, Any]:
        tokens, count = int(lengths.sum()), len(lengths)
        starts = np.full(self.room.sequences + 1, tokens)
        starts[: count + 1] = np.concatenate([[0], np.cumsum(lengths)])
        numbers = np.repeat(np.arange(count), lengths)
        return {
            "counts": [tokens, count], "ids": ids, "types": types,
            "positions": np.arange(tokens) - starts[numbers], "sequences": numbers,
            "lasts": starts[1 : count + 1] - 1, "starts": starts,
            "ones": np.minimum(np.arange(self.room.sequences + 1), count),
        }  # fmt: skip

    def _write(self, values: Mapping[str, Any]) -> None:
        host = np.zeros(len(self._inputs), np.int32)
        for name, value in values.items():
            begin = self._places[name].start
            host[begin : begin + len(value)] = value
        self._inputs.copy_(torch.from_numpy(host))

    def fill_on_device(
        self, pack: Any, ids: torch.Tensor, types: torch.Tensor | None, ends: torch.Tensor, longest: int
    ) -> None:
        """A batch of device tensors [batch, n], packed there; `ends` of sequences, one behind the other."""
        ones = self._inputs[self._places["ones"]]
        out = (
            self.ids, self.types, self.positions, self.sequences, self.lasts, self.starts, ones, self.counts
        )  # fmt: skip
        pack(ids, types, ends, longest, self.room.sequences, out)
