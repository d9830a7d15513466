"""`hccs reproduce`: the paper's tables and everything beyond them, from local data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models

app = typer.Typer(help="Reproduce the paper's tables and what goes beyond them.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder with sst2/, mnli/, the encoders' folders and vocab.txt.")]
Out = Annotated[Path, typer.Option(help="Folder for results; a run that was interrupted goes on.")]
Work = Annotated[
    Path | None, typer.Option(help="Folder for what is large and can be made again; --out by default.")
]
Jobs = Annotated[int, typer.Option(help="Processes at a time; a large GPU takes many.", min=1)]


@app.command()
def run(
    data: Data,
    out: Out,
    work: Work = None,
    models: Annotated[
        str, typer.Option(help="Encoders, separated by commas: tiny, small, minilm.")
    ] = "tiny,small,minilm",
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "sst2,mnli",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    stages: Annotated[
        str,
        typer.Option(
            help="Stages, separated by commas; all but the ablations (retrained layer, retrained global, "
            "retrained float) by default. More can be added to the same --out."
        ),
    ] = "",
    jobs: Jobs = 1,
) -> None:
    """One float model per encoder, task and seed, and everything that is measured from it."""
    require_models()
    from hccs.pipeline.reproduce import plan as plans
    from hccs.pipeline.reproduce.run import run as run_all
    from hccs.pipeline.reproduce.stages import EXTRA, STAGES

    wanted = _names(stages) or tuple(name for name in STAGES if name not in EXTRA)
    plans.require_known("stages", wanted, STAGES)
    chosen = plans.experiments(_names(models), _names(tasks), seeds)
    run_all(plans.Plan(data, out, work or out, wanted), chosen, jobs, typer.echo)


def _names(text: str) -> tuple[str, ...]:
    """Names that were separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
