"""`hccs reproduce`: the paper's accuracy tables and fidelity figures from local data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models

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
        str,
        typer.Option(
            help="Retraining variants, separated by commas: head, global, layer, u8_clb, paper, learnt, "
            "recalibrated, float-same-budget; all by default. More can be added to the same --out."
        ),
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes at a time; a large GPU takes many.", min=1)] = 1,
    keep_models: Annotated[
        bool, typer.Option(help="Keep the retrained weights, too: `reproduce fidelity` needs them.")
    ] = False,
) -> None:
    """Baseline, without retraining, retrained and delta; granularities; over seeds."""
    require_models()
    from hccs.pipeline.reproduce import accuracy as grid
    from hccs.pipeline.reproduce import tables

    plan = grid.Plan(data, out, _names(variants) or tuple(grid.VARIANTS), keep_models)
    grid.run(plan, grid.experiments(_names(models), _names(tasks), seeds), jobs)
    tables.write(out)
    typer.echo((out / "accuracy.md").read_text())


@app.command()
def integers(
    data: Data,
    out: Out,
    models: Annotated[
        str, typer.Option(help="Encoders, separated by commas: tiny, small, minilm.")
    ] = "tiny,small,minilm",
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "sst2,mnli",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    jobs: Annotated[int, typer.Option(help="Processes at a time; a large GPU takes many.", min=1)] = 1,
) -> None:
    """Whole encoders in integers beside float and HCCS: without training, and trained; over seeds."""
    require_models()
    from hccs.pipeline.reproduce import accuracy as grid
    from hccs.pipeline.reproduce import integers as whole

    chosen = grid.experiments(_names(models), _names(tasks), seeds)
    whole.run(grid.Plan(data, out), chosen, jobs, typer.echo)
    options = f"--models {models} --tasks {tasks} --seeds {seeds}"
    whole.write(out, f"hccs reproduce integers --data DATA --out OUT {options} --jobs {jobs}")
    typer.echo((out / "whole_encoder.md").read_text())


@app.command()
def fidelity(
    data: Data,
    out: Out,
    models: Annotated[str, typer.Option(help="Encoders, separated by commas.")] = "tiny,small,minilm",
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "sst2,mnli",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 1,
) -> None:
    """KL per head before and after retraining, in every mode, and the figure of probability curves."""
    require_models()
    from hccs.pipeline.report import fidelity as measured
    from hccs.pipeline.reproduce import accuracy as grid

    chosen = grid.experiments(_names(models), _names(tasks), seeds)
    measured.measure_cells(grid.Plan(data, out), chosen)
    for figure in measured.draw_cells(out):
        typer.echo(f"drew {figure}")
    typer.echo((out / "fidelity.md").read_text())


@app.command()
def decoder(
    model: Annotated[Path, typer.Option(help="A decoder's folder: safetensors, or one GGUF file.")],
    text: Annotated[Path, typer.Option(help="The text whose perplexity is measured.")],
    calibration_text: Annotated[Path, typer.Option(help="Another text, for calibration.")],
    out: Out,
    contexts: Annotated[str, typer.Option(help="Context lengths, separated by commas.")] = "128,256,512,1024",
    tokens: Annotated[int, typer.Option(help="Tokens of a cell.", min=1)] = 4096,
    calibration_tokens: Annotated[int, typer.Option(help="Tokens of calibration.", min=1)] = 4096,
) -> None:
    """Perplexity of a decoder without retraining: forms of HCCS and other methods, over context lengths."""
    require_models()
    from hccs.pipeline.reproduce import decoder as cells

    lengths = tuple(int(length) for length in _names(contexts))
    plan = cells.Plan(
        model, text, calibration_text, out, lengths, tokens=tokens, calibration_tokens=calibration_tokens
    )
    cells.write(plan, cells.run(plan, typer.echo))
    typer.echo((out / "decoder.md").read_text())


def _names(text: str) -> tuple[str, ...]:
    """Names that were separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
