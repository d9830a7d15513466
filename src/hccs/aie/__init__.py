"""The AI Engine.

Kernels that run here bit for bit, a cycle model of them, and projects to build on the device.
"""
