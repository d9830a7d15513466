"""`hccs report FOLDER`: one HTML file about a conversion, a perplexity, a comparison or a reproduction."""

from __future__ import annotations

from pathlib import Path

from hccs._files import atomic
from hccs.errors import FileError
from hccs.pipeline.report.page import Report
from hccs.pipeline.runs.record import read_json

NAME = "report.html"
"""The report's file in the folder it is about."""


def report_of(folder: str | Path) -> Report:
    """What there is to say about a folder that one of the commands has written."""
    place = Path(folder)
    if (place / "comparison.json").exists():
        from hccs.pipeline.report.comparison import comparison_report

        return comparison_report(place)
    if (place / "cells").is_dir() or (place / "long" / "cells").is_dir():
        from hccs.pipeline.report.reproduction import reproduction_report

        return reproduction_report(place)
    if is_language(place):
        from hccs.pipeline.report.language import language_report

        return language_report(place)
    if (place / "results.json").exists():
        from hccs.pipeline.report.conversion import conversion_report

        return conversion_report(place)
    raise FileError(
        f"{place} to be a folder of hccs convert, perplexity, compare or reproduce",
        "no such folder" if not place.is_dir() else "a folder without results",
        "Name the --out of a command that has finished.",
    )


def is_language(folder: Path) -> bool:
    """Whether a folder is that of `hccs perplexity`: its settings say so."""
    begun = folder / "settings.json"
    return begun.exists() and read_json(begun, "Run the command anew.").get("problem") == "language"


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a folder, into it unless `out` says where; returns its path."""
    path = Path(folder) / NAME if out is None else Path(out)
    atomic.replace(path, report_of(folder).html().encode())
    return path
