"""`hccs demo`: a whole conversion with what ships in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hccs.cli.boundary import require_models


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, its table and figures.")] = Path(
        "build/demo"
    ),
) -> None:
    """Convert the embedded BERT-tiny on the embedded sentiment task: no network needed."""
    require_models()
    from hccs.cli.convert import show_summary
    from hccs.pipeline.convert.demo import demo as run

    console = Console()
    results = run(out, console.print)
    console.print(f"model, table, integer model and figures in {out}")
    show_summary(console, results)
