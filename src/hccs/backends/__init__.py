"""Kernels, a folder per kind of machine. Each returns the bits of `hccs.reference`."""

from hccs.backends import cpu

__all__ = ["cpu"]
