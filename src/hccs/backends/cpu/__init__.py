"""Native kernels for CPUs, one set per instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hccs.backends.cpu.instruction_sets import KernelInfo, info

__all__ = ["KernelInfo", "info"]


def __getattr__(name: str) -> Any:
    """The compiled module is loaded when it is first needed: a package without it can be imported."""
    if name in __all__:
        from hccs.backends.cpu import instruction_sets

        return getattr(instruction_sets, name)
    raise AttributeError(f"module 'hccs.backends.cpu' has no attribute {name!r}")
