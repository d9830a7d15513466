"""Native kernels for CPUs, one set per instruction set."""

from hccs.backends.cpu.instruction_sets import KernelInfo, info

__all__ = ["KernelInfo", "info"]
