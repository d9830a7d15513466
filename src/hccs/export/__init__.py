"""Converted models for other runtimes: portable C (`c`, needs NumPy alone) and ONNX (`onnx_model`)."""

from hccs.export.c import export_c
from hccs.export.freestanding.write import export_c_model
from hccs.numbers.converted import run_table

__all__ = ["export_c", "export_c_model", "run_table"]
