"""The AI Engine: kernels that run here bit for bit, a cycle model of them, and projects for the device."""
