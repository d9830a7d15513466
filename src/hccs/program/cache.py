"""`Cache`: the int8 keys and values of the tokens that a causal program has read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ModelError, ShapeError
from hccs.program.program import Program

SMALLEST = 64
"""Rows for which a cache first has room; then it doubles."""


def require_causal(program: Program) -> None:
    """Refuse a program whose tokens depend on later ones, or that has no scores of every token."""
    hint = "Lower a causal language model, GPT-2 say."
    if program.embed.image is not None or not program.per_token:
        what = "images" if program.embed.image is not None else "one answer per sequence"
        raise ModelError("a program with scores of every token", what, hint)
    for step in program.operators:
        if step.sees_later_rows:
            raise ModelError(
                "a causal program, whose rows depend on earlier rows alone",
                f"{type(step).__name__} ({step.output!r}), whose rows depend on later ones",
                hint,
            )


def is_causal(program: Program) -> bool:
    """Whether new rows of a program can be computed from a cache of the rows before."""
    try:
        require_causal(program)
    except ModelError:
        return False
    return True


def row_of_tokens(program: Program, tokens: Any, number: int) -> NDArray[np.int64]:
    """The checked token ids of one text, one at least."""
    if not np.size(tokens):
        raise ShapeError(
            "at least one token of every text",
            f"none of text {number}",
            "Begin with the model's token for the beginning of a text.",
        )
    read = program.embed.read(np.asarray(tokens)[None], None, None, program.longest)
    row: NDArray[np.int64] = read.tokens[0]
    return row


def cached_heads(program: Program) -> dict[str, tuple[int, int]]:
    """By the value that each attention writes, in order, its heads of keys and the channels of each."""
    shapes = {
        step.output: step.cached_heads(program.values[step.inputs[0]])
        for step in program.operators
        if step.inputs
    }
    return {output: shape for output, shape in shapes.items() if shape is not None}


class Cache:
    """Keys and values of `sequences` texts, [sequences, heads, capacity, channels] for every attention.

    `IntegerModel.cache` makes one, and `IntegerModel.extend` appends to it; `lengths` counts the tokens of
    every text. It belongs to its program, and to one call at a time.
    """

    _multiple = 1
    """What the capacity is a multiple of."""

    def __init__(self, program: Program, sequences: int, device: str = "cpu") -> None:
        require_causal(program)
        if type(sequences) is not int or sequences < 1:
            raise ShapeError("a cache of at least 1 sequence", repr(sequences), "Give their number.")
        self.program, self.sequences, self.device = program, sequences, device
        self.lengths = np.zeros(sequences, np.int64)
        self.capacity = 0
        self._shapes = cached_heads(program)
        self._memory = self._zeros(0)
        self._lock = threading.Lock()

    def _zeros(self, size: int) -> Any:
        return np.zeros(size, np.int8)

    def _given(self, rows: NDArray[np.int8]) -> Any:
        """Rows of the host in the form of `memory`."""
        return rows

    def _read(self, rows: Any) -> NDArray[np.int8]:
        """Rows of `memory` on the host."""
        found: NDArray[np.int8] = rows
        return found

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return sum(2 * heads * channels for heads, channels in self._shapes.values())

    @property
    def memory(self) -> Any:
        """All keys and values: attention by attention, its keys and then its values."""
        return self._memory

    def views(self, output: str) -> Any:
        """Keys and values [2, sequences, heads, capacity, channels] of the attention that writes a value."""
        rows, start = self.sequences * self.capacity, 0
        for name, (heads, channels) in self._shapes.items():
            size = 2 * rows * heads * channels
            if name == output:
                shape = (2, self.sequences, heads, self.capacity, channels)
                return self._memory[start : start + size].reshape(shape)
            start += size
        raise DataError("an attention of the program", repr(output), "Its operators name what they write.")

    def reserve(self, rows: int) -> None:
        """Make room for so many tokens of every sequence: 64, or the next power of two, or all."""
        if rows <= self.capacity:
            return
        capacity = SMALLEST
        while capacity < rows:
            capacity *= 2
        capacity = min(capacity, max(self.program.rows, rows))
        capacity = -(-capacity // self._multiple) * self._multiple
        old = {name: self.views(name) for name in self._shapes}
        before, self.capacity = self.capacity, capacity
        self._memory = self._zeros(self.sequences * capacity * self.row_bytes)
        for name, rows_before in old.items():
            self.views(name)[..., :before, :] = rows_before

    @contextmanager
    def extending(
        self, program: Program, texts: NDArray[np.int64], counts: NDArray[np.int64], device: str = "cpu"
    ) -> Iterator[None]:
        """Room for `counts` more tokens of these texts, which are theirs once the body is done."""
        if program is not self.program or device != self.device:
            raise DataError("a cache of this model", "one of another", "Make one with model.cache().")
        if not self._lock.acquire(blocking=False):
            raise DataError("a cache that no other call uses", "one in use", "Make one per thread.")
        try:
            after = self.lengths[texts] + counts
            if (after > self.program.rows).any():
                raise ShapeError(
                    f"at most {self.program.rows} tokens in a sequence",
                    f"{self.lengths[texts].max()} in the cache and {counts.max()} more",
                    "End the text, or lower the model for more.",
                )
            self.reserve(int(after.max()))
            yield
            self.lengths[texts] = after
        finally:
            self._lock.release()

    def append(
        self, output: str, texts: NDArray[np.int64], counts: NDArray[np.int64], k: Any, v: Any
    ) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Write new keys and values [texts, heads, n, channels], `counts` of each; return all of them."""
        views = self.views(output)
        for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
            start = int(self.lengths[text])
            views[0, text, :, start : start + count] = self._given(k[row, :, :count])
            views[1, text, :, start : start + count] = self._given(v[row, :, :count])
        longest = int((self.lengths[texts] + k.shape[2]).max())
        keys, values = self._read(views[:, texts, :, :longest])
        short = longest - keys.shape[2]  # rows of padding may reach beyond the room of real ones
        if short > 0:
            keys, values = (np.pad(part, ((0, 0), (0, 0), (0, short), (0, 0))) for part in (keys, values))
        return keys, values
