"""`hccs reproduce`: the paper's tables and everything beyond them, from local data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.errors import ParameterError

app = typer.Typer(help="Reproduce the paper's tables and what goes beyond them.", no_args_is_help=True)

Data = Annotated[
    Path,
    typer.Option(
        help="Folder with sst2/, mnli/, the encoders' folders and vocab.txt. The folder of one task in it, "
        "which hccs convert --data takes, stands for it."
    ),
]
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
            help="Stages, separated by commas; by default all but those that train for comparison alone "
            "(retrained layer, retrained global, retrained float, surrogates retrained). More can be added "
            "to the same --out. One softmax replacement is a stage, too: 'surrogates retrained ibert'."
        ),
    ] = "",
    jobs: Jobs = 1,
) -> None:
    """One float model per encoder, task and seed, and everything that is measured from it."""
    require_models()
    from hccs_lab.reproduce import plan as plans
    from hccs_lab.reproduce.run import run as run_all
    from hccs_lab.reproduce.stages import named

    wanted = named(_names(stages))
    chosen = plans.experiments(_names(models), _names(tasks), seeds)
    run_all(plans.Plan(plans.parent_of_tasks(data), out, work or out, wanted), chosen, jobs, typer.echo)


@app.command()
def tables(
    out: Annotated[Path, typer.Argument(help="A folder of results.")],
    page: Annotated[
        list[Path] | None, typer.Option(help="A page whose marked blocks are replaced; may be repeated.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="A file for the results of all experiments.")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="A folder for figures of probability curves and of softmax replacements."),
    ] = None,
) -> None:
    """All tables of a folder of results as Markdown, printed and put into pages."""
    from hccs_lab.reproduce import tables as own

    cells, long = own.read_cells(out), own.read_cells(out / "long")
    made = own.every_table(cells, long)
    if not made:
        own.load(out)  # refuses
    for name, table in made.items():
        typer.echo(f"\n### {name}\n\n{table}")
    for path in page or []:
        typer.echo(f"{path}: {', '.join(own.fill(path, made)) or 'nothing to fill'}")
    if json is not None:
        from hccs_lab.reproduce.run import settings

        own.write_json(json, {"settings": settings(), "cells": cells, "long": long})
    if figures is not None:
        from hccs_lab.fidelity import fidelity_figure
        from hccs_lab.figures import surrogates_figure

        figures.mkdir(parents=True, exist_ok=True)
        for name, stages in cells.items():
            if "fidelity" in stages.get("retrained", {}):
                fidelity_figure(stages["retrained"]["fidelity"], figures / f"{name}.png", name)
        surrogates_figure(own.groups(cells), figures / "surrogates.png")


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
    from hccs_lab.reproduce import decoder as cells

    lengths = _lengths(contexts)
    plan = cells.DecoderPlan(
        model, text, calibration_text, out, lengths, tokens=tokens, calibration_tokens=calibration_tokens
    )
    cells.write(plan, cells.run(plan, typer.echo))
    typer.echo((out / "decoder.md").read_text())


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _lengths(text: str) -> tuple[int, ...]:
    names = _names(text)
    if not names or not all(name.isdecimal() and int(name) > 1 for name in names):
        raise ParameterError(
            "context lengths of at least 2 tokens, separated by commas",
            repr(text),
            "For example --contexts 128,256.",
        )
    return tuple(map(int, names))
