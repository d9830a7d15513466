"""Whole integer programs as ONNX: the reference's scores in every bit, from operators that runtimes have."""

from hccs.export.onnx_program.check import equal_scores
from hccs.export.onnx_program.model import onnx_program, write_onnx

__all__ = ["equal_scores", "onnx_program", "write_onnx"]
