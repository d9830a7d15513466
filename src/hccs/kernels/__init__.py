"""One door to every backend: `softmax` checks its arguments and hands them to the fastest exact kernel."""

from hccs.kernels.door import softmax
from hccs.kernels.isa import KernelInfo, info

__all__ = ["KernelInfo", "info", "softmax"]
