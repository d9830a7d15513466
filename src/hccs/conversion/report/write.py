"""`hccs report FOLDER`: one HTML file about a conversion, with its style, its pictures and a short script."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import hccs
from hccs import _html
from hccs._extras import require
from hccs._files import atomic
from hccs._progress import duration
from hccs.conversion.converted import REPORT
from hccs.conversion.data.problems import EMBEDDINGS
from hccs.conversion.runs.record import problem_of
from hccs.errors import FileError

HERE = Path(__file__).parent


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a folder, into it unless `out` says where; returns its path."""
    place = Path(folder)
    path = place / REPORT if out is None else Path(out)
    if not (place / "results.json").exists():
        raise FileError(
            f"{place} to be a folder of hccs convert",
            "no such folder" if not place.is_dir() else "a folder without results",
            "Name the --out of a command that has finished.",
        )
    if problem_of(place) == EMBEDDINGS:
        from hccs.conversion.report.embeddings import embeddings_page as page_of
    else:
        from hccs.conversion.report.conversion import conversion_page as page_of
    page = page_of(place)
    atomic.replace(path, templates().get_template("page.html").render(page).encode())
    return path


@cache
def templates() -> Any:
    """The pages; whatever they print is escaped, so no label of a data set can become markup."""
    jinja2 = require("jinja2", "hf", "for reports")
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {
        "asset": lambda name: _html.Markup((HERE / name).read_text(encoding="utf-8")),
        "duration": duration,
        "sparkline": _html.sparkline,
        "version": hccs.__version__,
    }
    found.filters["in_run"] = lambda command, path: (
        f"hccs {command} {path}" + ' "a text"' * (command == "predict")
    )
    return found


def chart(name: str, *values: Any) -> Any:
    """A chart of `parts.html` as a cell of a table."""
    return getattr(templates().get_template("parts.html").module, name)(*values)


def signed(value: float) -> str:
    """A difference with its sign; what rounds to nothing has none.

    >>> ascii(signed(-0.5)), signed(0.001)
    ("'\\\\u22120.50'", '0.00')
    """
    rounded = round(value, 2)
    shown = f"{rounded:+.2f}" if rounded else "0.00"
    return shown.replace("-", "\N{MINUS SIGN}")
