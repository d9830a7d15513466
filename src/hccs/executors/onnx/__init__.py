"""Integer programs as ONNX: the reference's answers in every bit, from operators that runtimes have."""

from hccs.executors.onnx.model import equal_scores, onnx_program, write_checked, write_onnx

__all__ = ["equal_scores", "onnx_program", "write_checked", "write_onnx"]
