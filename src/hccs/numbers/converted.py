"""Finding the parameter table that an export is asked to write."""

from __future__ import annotations

import os
from pathlib import Path

from hccs.errors import FileError
from hccs.numbers.table import CONVERTED, ParamTable


def run_table(run: str | os.PathLike[str]) -> ParamTable:
    """The table of a finished run's converted model, or of a table file."""
    path = Path(run)
    try:
        file = path if path.is_file() else path / CONVERTED
        missing = None if file.exists() else "no such file or folder"
        if missing and path.is_dir():
            missing = f"no {CONVERTED} in it"
    except OSError as error:
        missing = str(error)
    if missing:
        raise FileError(
            f"{path} to be a finished run or a parameter table",
            missing,
            "Finish the run with hccs convert, or name a file that ParamTable.save wrote.",
        )
    return ParamTable.load(file)
