"""`hccs evaluate`, `report`: more about a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output
from hccs.cli.tables import show
from hccs.numbers.modes import Mode

Run = Annotated[Path, typer.Argument(help="The folder of a finished run.")]


def evaluate(
    run: Run,
    mode: Annotated[Mode | None, typer.Option(help="One mode; all of them by default.")] = None,
    file: Annotated[
        str, typer.Option(help="Another file with the columns of the task; for embeddings, one of pairs.")
    ] = "",
    metric: Annotated[str, typer.Option(help="Another metric than the run's, as in hccs convert.")] = "",
    backend: Annotated[
        Literal["float", "integer", "whole"],
        typer.Option(
            help="'integer' also quantises q, k and v, and shows what that costs; 'whole' scores the model "
            "that is integers throughout."
        ),
    ] = "float",
    json: Json = False,
) -> None:
    """Score a converted model in any mode, on any file."""
    require_models()
    from hccs.conversion.evaluate import evaluate as score

    output = Output(json)
    modes = (mode.value,) if mode else ()
    with output.results_alone():
        found = score(run, modes, file or None, backend, metric or None)
    output.results({"metric": found.metric, "examples": found.examples, **found.scores})
    title = f"{found.metric} on {found.examples} examples"
    against = ["against float q, k, v, points"] if backend == "integer" else []
    against = ["points"] if "whole" in found.scores else against
    labels = {"float": "float", "whole": "all in integers"}
    rows = []
    for name, value in found.scores.items():
        base = "float" if name == "whole" else name.removesuffix(" integer")
        difference = f"{100 * (value - found.scores[base]):+.2f}" if base != name else ""
        rows.append([labels.get(name, f"HCCS {name}"), f"{value:.4f}", *[difference] * len(against)])
    show(output.console, title, ["model", found.metric, *against], rows)


def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; report.html in RUN by default.")
    ] = None,
) -> None:
    """Write a report to look at, to print and to send: one HTML file that holds all it shows."""
    require_models()
    from hccs.conversion.report.write import write_report

    Output().say(f"wrote {write_report(run, out)}")
