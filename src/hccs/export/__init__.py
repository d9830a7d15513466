"""Converted models for other runtimes: portable C (needs NumPy alone) and ONNX."""

from hccs.executors.c.write import export_c_model
from hccs.executors.onnx import write_onnx
from hccs.export.c import export_c
from hccs.numbers.converted import run_table

__all__ = ["export_c", "export_c_model", "run_table", "write_onnx"]
