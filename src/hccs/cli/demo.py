"""`hccs demo`: a whole conversion with what ships in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, its table and figures.")] = Path(
        "build/demo"
    ),
) -> None:
    """Convert the embedded BERT-tiny on the embedded sentiment task: no network needed."""
    from hccs.cli.convert import summary
    from hccs.pipeline.convert.demo import demo as run

    console = Console()
    results = run(out, console.print)
    console.print(summary(results))
    console.print(f"mean KL over heads: {results['stages']['calibrate']['kl']:.4f}")
    console.print(f"model, table and figures in {out}")
