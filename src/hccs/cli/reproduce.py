"""`hccs reproduce`: the paper's accuracy tables and fidelity figures from local data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Reproduce the paper's tables and figures.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder with sst2/, mnli/, the encoders' folders and vocab.txt.")]
Out = Annotated[Path, typer.Option(help="Folder for results; a run that was interrupted goes on.")]


@app.command()
def accuracy(
    data: Data,
    out: Out,
    models: Annotated[
        str, typer.Option(help="Encoders, separated by commas: tiny, small, minilm.")
    ] = "tiny,small,minilm",
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "sst2,mnli",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    variants: Annotated[
        str, typer.Option(help="Retraining variants, separated by commas; all by default.")
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes at a time; a large GPU takes many.", min=1)] = 1,
    keep_models: Annotated[
        bool, typer.Option(help="Keep the weights, as `reproduce fidelity` needs them.")
    ] = False,
) -> None:
    """Baseline, without retraining, retrained and delta; granularities; over seeds."""
    from hccs.pipeline.reproduce import accuracy as grid
    from hccs.pipeline.reproduce import tables

    names = tuple(v for v in variants.split(",") if v) or tuple(grid.VARIANTS)
    plan = grid.Plan(data, out, names, keep_models)
    grid.run(plan, grid.cells(models.split(","), tasks.split(","), seeds), jobs)
    tables.write(out)
    typer.echo((out / "accuracy.md").read_text())


@app.command()
def fidelity(
    data: Data,
    out: Out,
    models: Annotated[str, typer.Option(help="Encoders, separated by commas.")] = "tiny,small,minilm",
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "sst2,mnli",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 1,
) -> None:
    """KL per head before and after retraining, in every mode, and the figure of probability curves."""
    from hccs.pipeline.report import fidelity as measured
    from hccs.pipeline.reproduce import accuracy as grid

    measured.measure_cells(grid.Plan(data, out), grid.cells(models.split(","), tasks.split(","), seeds))
    for figure in measured.draw_cells(out):
        typer.echo(f"drew {figure}")
    typer.echo((out / "fidelity.md").read_text())
