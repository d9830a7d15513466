"""What an export is asked to write: a whole integer model, or a table of HCCS parameters."""

from __future__ import annotations

import os
from pathlib import Path

from hccs._files import safetensors
from hccs.numbers.converted import run_table
from hccs.numbers.table import ParamTable
from hccs.program import IntegerModel
from hccs.program.files import FORMAT, IN_RUN


def model_or_table(path: str | os.PathLike[str]) -> IntegerModel | ParamTable:
    """The integer model of a file or a finished run; the table of a table's file, or of a run without one."""
    place = Path(path)
    if place.is_dir() and (place / IN_RUN).exists():
        return IntegerModel.load(place / IN_RUN)
    if place.is_file() and safetensors.read(place)[1].get("format") == FORMAT.name:
        return IntegerModel.load(place)
    return run_table(place)
