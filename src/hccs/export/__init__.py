"""Converted models for other runtimes: portable C (needs NumPy alone) and ONNX."""

import os
from pathlib import Path

from hccs._files import safetensors
from hccs.executors.c.write import export_c_model
from hccs.executors.onnx import write_onnx
from hccs.executors.wasm.write import export_wasm
from hccs.export.c import export_c
from hccs.numbers.table import ParamTable, run_table
from hccs.program import IntegerModel
from hccs.program.files import FORMAT, IN_RUN

__all__ = ["export_c", "export_c_model", "export_wasm", "model_or_table", "run_table", "write_onnx"]


def model_or_table(path: str | os.PathLike[str]) -> IntegerModel | ParamTable:
    """The integer model of a file or a finished run; the table of a table's file, or of a run without one."""
    place = Path(path)
    if place.is_dir() and (place / IN_RUN).exists():
        return IntegerModel.load(place / IN_RUN)
    if place.is_file() and safetensors.read(place)[1].get("format") == FORMAT.name:
        return IntegerModel.load(place)
    return run_table(place)
