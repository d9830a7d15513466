"""`hccs show`: an integer model for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.output import Json, Output
from hccs.program import IntegerModel
from hccs.program.describe import as_dict
from hccs.program.files import find


def show(
    file: Annotated[Path, typer.Argument(help="A file that IntegerModel.save wrote, or its folder.")],
    json: Json = False,
) -> None:
    """List an integer model's operators, shapes, scales, bytes and products."""
    model, output = IntegerModel.load(find(file)), Output(json)
    output.results(as_dict(model.program))
    if not json:
        typer.echo(repr(model))
