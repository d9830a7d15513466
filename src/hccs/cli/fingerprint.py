"""`hccs fingerprint`: what tells whether two machines compute the same model with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.output import Json, Output
from hccs.program import IntegerModel
from hccs.program.files import find
from hccs.program.fingerprints import FACT


def fingerprint(
    model: Annotated[Path, typer.Argument(help="A file that IntegerModel.save wrote, or its folder.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compute it by the reference too; refuse unless it is the file's."),
    ] = False,
    json: Json = False,
) -> None:
    """Print the SHA-256 of a model's answers to fixed inputs: the same wherever it runs correctly."""
    found = IntegerModel.load(find(model))
    computed = found.verify() if verify else found.fingerprint()
    stored = found.program.facts.get(FACT)
    output = Output(json)
    output.results({"fingerprint": computed, "stored": stored, "verified": verify})
    if not json:
        output.say(computed)
