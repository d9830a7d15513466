"""Integer programs as ONNX: the reference's scores in every bit, from operators that runtimes have."""

from hccs.executors.onnx.check import equal_scores
from hccs.executors.onnx.model import onnx_program, write_onnx

__all__ = ["equal_scores", "onnx_program", "write_onnx"]
