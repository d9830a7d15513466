"""Kernels, a folder per kind of machine. Each returns the bits of `hccs.reference`."""
