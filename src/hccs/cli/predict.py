"""`hccs predict`: what the integer model of a run answers."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.output import Json, Output
from hccs.cli.tables import show
from hccs.errors import DataError


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    texts: Annotated[
        list[str], typer.Argument(help="Texts; - reads them from stdin, one per line (pairs: a tab between).")
    ],
    json: Json = False,
) -> None:
    """Answer texts with a run's integer model: NumPy and tokenizers alone, no torch."""
    from hccs.conversion.predict import predict as answers_to

    given = [line for text in texts for line in ([text] if text != "-" else _lines())]
    if not given:
        raise DataError("at least one text", "none", "Give texts as arguments, or lines on stdin for -.")
    output = Output(json)
    found = answers_to(run, given)
    output.results([[asdict(answer) for answer in answers] for answers in found])
    rows = [[one.text, one.label, f"{one.score:.4f}"] for answers in found for one in answers]
    show(output.console, "", ["text", "label", "score"], rows)


def _lines() -> list[str]:
    return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
