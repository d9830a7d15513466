"""`hccs where`: where the integer model of a run loses accuracy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output, on_run
from hccs.cli.tables import show


def where(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    file: Annotated[str, typer.Option(help="Another file with the columns of the task.")] = "",
    examples: Annotated[int, typer.Option(min=1, help="The number of examples to look at.")] = 512,
    json: Json = False,
) -> None:
    """Show the noise of every value of an integer model, and what each operator alone would cost."""
    require_models()
    from hccs.conversion.report import where as report
    from hccs.conversion.report.write import write_report

    output = Output(json)
    with output.results_alone():
        found = report.where(run, file or None, examples)
    output.results(asdict(found))
    console = output.console
    points = [] if found.accuracy is None else ["points"]
    show(
        console,
        "one kind of operator alone in integers, compared with the float model",
        ["operator", "layer", "answers that stay, %", "KL, nats", "logits, dB", *points],
        report.operator_rows(found),
    )
    show(
        console,
        "the noisiest values",
        ["value", "layer", "name in the program", "signal to noise, dB"],
        report.value_rows(found),
    )
    lines = [f"all of it in {run / report.NUMBERS}, drawn in {run / report.FIGURE}"]
    output.end("where accuracy goes", [*lines, f"report: {write_report(run)}"], on_run(run, "bench"))
