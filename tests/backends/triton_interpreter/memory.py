"""The interpreter's memory, of which a kernel may touch its tensors alone.

A GPU stops at an address that no allocation holds, and at once forgets the process's other work; one byte
past a tensor it mostly finds another tensor. Here both are told.
"""

import numpy as np
import torch
from triton.tools.tensor_descriptor import TensorDescriptor


class OutsideError(AssertionError):
    """A kernel reads or writes what it was not given."""


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to past its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


class Memory:
    """In the place of the interpreter's own module: its loads and stores, looked at before they are done."""

    def __init__(self, plain):
        self.plain = plain
        self.give([])

    def __getattr__(self, name):
        return getattr(self.plain, name)

    def give(self, arguments) -> None:
        """Begin a launch: what its arguments point to is what it may touch."""
        tensors = [x.base if isinstance(x, TensorDescriptor) else x for x in arguments]
        parts = sorted(extent(x) for x in tensors if isinstance(x, torch.Tensor) and x.numel())
        self.begins, ends = np.array([(0, 0), *parts], np.int64).T
        # Views of one tensor overlap: what begins earlier may end later.
        self.ends = np.maximum.accumulate(ends)

    def load(self, places, mask, other, dtype):
        self.require(places, mask, np.dtype(dtype).itemsize)
        return self.plain.load(places, mask, other, dtype)

    def store(self, places, value, mask):
        self.require(places, mask, value.itemsize)
        return self.plain.store(places, value, mask)

    def atomic_rmw(self, operation, places, value, mask, order):
        self.require(places, mask, value.itemsize)
        return self.plain.atomic_rmw(operation, places, value, mask, order)

    def require(self, places, mask, size: int) -> None:
        places = places[np.broadcast_to(mask, places.shape)].astype(np.int64)
        part = np.searchsorted(self.begins, places, "right") - 1  # the first begins at 0
        room = self.ends[part] - size - places
        if (room < 0).any():
            raise OutsideError(
                f"{(room < 0).sum()} of {places.size} addresses lie outside every tensor of the launch, "
                f"up to {-room.min()} bytes behind the end of the one before"
            )


def watched(interpreter) -> None:
    """Let kernels in Triton's interpreter touch nothing but the tensors they are launched with."""
    memory = interpreter._interpreter = Memory(interpreter._interpreter)
    prepare = interpreter.GridExecutor._init_args_hst

    def given(self, arguments, named):
        arguments, named = prepare(self, arguments, named)
        memory.give([*arguments, *named.values()])
        return arguments, named

    interpreter.GridExecutor._init_args_hst = given
