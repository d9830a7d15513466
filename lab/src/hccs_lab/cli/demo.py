"""`hccs demo`: a whole conversion with what ships in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Output


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, its table and figures.")] = Path(
        "build/demo"
    ),
) -> None:
    """Convert the BERT-tiny that ships with hccs-lab on its sentiment task: no network needed."""
    require_models()
    from hccs.cli.convert import show_end, show_summary
    from hccs_lab.demo import demo as run

    output = Output()
    found = run(out, output.say)
    show_summary(output.console, found.results)
    show_end(output, found)
