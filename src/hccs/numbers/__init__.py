"""Values and their laws: modes, head parameters, regions, scales and factors. No kernels, no frameworks."""
