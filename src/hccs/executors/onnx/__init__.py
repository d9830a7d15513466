"""Integer programs as ONNX: the reference's answers in every bit, from operators that runtimes have."""

from hccs.executors.onnx.check import equal_scores, write_checked
from hccs.executors.onnx.model import onnx_program, write_onnx

__all__ = ["equal_scores", "onnx_program", "write_checked", "write_onnx"]
