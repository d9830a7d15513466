"""Converted models for other runtimes: portable C, ONNX."""

from hccs.export.c import export_c, run_table

__all__ = ["export_c", "run_table"]
