"""`hccs report`: one HTML file about a run, a comparison or a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Output


def report(
    run: Annotated[
        Path, typer.Argument(help="The --out of hccs convert, demo, perplexity, compare or reproduce.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; report.html in RUN by default.")
    ] = None,
) -> None:
    """Write a report to look at, to print and to send: one HTML file that holds all it shows."""
    require_models()
    from hccs.conversion.report.write import write_report

    Output().say(f"wrote {write_report(run, out)}")
