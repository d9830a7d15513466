"""One door to every backend: arguments are checked here and handed to the fastest exact kernel."""

from hccs.kernels.attention_door import attention
from hccs.kernels.door import softmax
from hccs.kernels.isa import KernelInfo, info

__all__ = ["KernelInfo", "attention", "info", "softmax"]
