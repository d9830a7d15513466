"""`hccs show`: an integer model for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.output import Json, Output
from hccs.errors import FileError
from hccs.program import IntegerModel
from hccs.program.describe import as_dict
from hccs.program.files import IN_RUN


def show(
    file: Annotated[Path, typer.Argument(help="A file that IntegerModel.save wrote, or a run's folder.")],
    json: Json = False,
) -> None:
    """List an integer model's operators, shapes, scales, bytes and products."""
    if file.is_dir():
        if not (file / IN_RUN).exists():
            raise FileError(
                f"{file} to hold an integer model",
                f"no {IN_RUN} in it",
                "Name a file, or a run that hccs convert has finished.",
            )
        file = file / IN_RUN
    model, output = IntegerModel.load(file), Output(json)
    output.results(as_dict(model.program))
    if not json:
        typer.echo(repr(model))
