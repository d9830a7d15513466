"""The AI Engine: kernels that run here bit for bit, a cycle model of them, and projects for the device."""

__version__ = "0.1.0"
