"""Integer programs on CUDA: `compiled` takes the one plan; kernels are those of `hccs.backends.triton`."""

from hccs.executors.cuda.engine import Engine, compiled

__all__ = ["Engine", "compiled"]
