"""Which instruction set the native kernels use on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hccs.backends.cpu import _native
from hccs.errors import require_one_of
from hccs.ops.arguments import cores


@dataclass(frozen=True)
class KernelInfo:
    """The instruction set in use, those this machine could run, those this build contains, and its cores."""

    isa: str
    available: tuple[str, ...]
    compiled: tuple[str, ...]
    cores: int


MODEL = "amx-model"
"""AMX with its tiles modelled in plain C++, so that tests run its loops everywhere; used where named only."""


def threads_for(work: int, each: int) -> int:
    """As many threads as have at least `each` of the work, up to the cores; one if two would not."""
    return 1 if work < 2 * each else min(cores(), work // each)


def available() -> tuple[str, ...]:
    """The instruction sets of this build that this machine runs, the fastest last."""
    return tuple(name for name, supported in _native.known_isas() if supported and name != MODEL)


def select(name: str) -> str:
    """Use this instruction set from now on, or the fastest for ''; returns the name of the one in use."""
    if name and name != MODEL:
        hint = "Unset it to use the fastest that this machine runs."
        require_one_of("HCCS_ISA", name, available(), hint)
    in_use: str = _native.select(name)
    return in_use


def info() -> KernelInfo:
    """What the native kernels run on.

    >>> info().isa in info().available
    True
    """
    compiled = tuple(name for name, _ in _native.known_isas() if name != MODEL)
    return KernelInfo(isa=_native.in_use(), available=available(), compiled=compiled, cores=cores())


select(os.environ.get("HCCS_ISA", ""))
