"""`hccs report FOLDER`: one HTML file about a conversion, a perplexity, a comparison or a reproduction."""

from __future__ import annotations

from pathlib import Path

from hccs._extras import require_distribution
from hccs._files import atomic
from hccs.conversion.converted import REPORT
from hccs.conversion.data.problems import EMBEDDINGS, LANGUAGE
from hccs.conversion.report.page import Report
from hccs.conversion.runs.record import read_json
from hccs.errors import FileError


def report_of(folder: str | Path) -> Report:
    """The report about a folder that one of the commands has written."""
    place = Path(folder)
    if (place / "comparison.json").exists():
        return _from_lab("comparison", place)
    if (place / "cells").is_dir() or (place / "long" / "cells").is_dir():
        return _from_lab("reproduction", place)
    problem = problem_of(place)
    if problem == LANGUAGE:
        from hccs.conversion.report.language import language_report

        return language_report(place)
    if problem == EMBEDDINGS:
        from hccs.conversion.report.embeddings import embeddings_report

        return embeddings_report(place)
    if (place / "results.json").exists():
        from hccs.conversion.report.conversion import conversion_report

        return conversion_report(place)
    raise FileError(
        f"{place} to be a folder of hccs convert, perplexity, compare or reproduce",
        "no such folder" if not place.is_dir() else "a folder without results",
        "Name the --out of a command that has finished.",
    )


def _from_lab(kind: str, folder: Path) -> Report:
    module = require_distribution(f"hccs_lab.report.{kind}", "this report")
    report: Report = getattr(module, f"{kind}_report")(folder)
    return report


def problem_of(folder: Path) -> str | None:
    """The problem that the settings of a run name, where it is a kind of run of its own."""
    begun = folder / "settings.json"
    if not begun.exists():
        return None
    found = read_json(begun, "Repeat the command with another --out.").get("problem")
    return found if isinstance(found, str) else None


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a folder, into it unless `out` says where; returns its path."""
    path = Path(folder) / REPORT if out is None else Path(out)
    atomic.replace(path, report_of(folder).html().encode())
    return path
