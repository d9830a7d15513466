"""The law of docs/spec.md in NumPy, one file an operator: the oracle of every backend.

Written to be read next to the paper, in plain integers. Never optimised.
"""
