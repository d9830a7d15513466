"""`hccs info`, `show`, `fingerprint`, `predict`: integer models, without torch."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import hccs
from hccs.backends import cpu
from hccs.cli.output import Device, Json, Output
from hccs.cli.tables import show as show_table
from hccs.errors import DataError
from hccs.program import IntegerModel
from hccs.program.describe import as_dict
from hccs.program.files import find
from hccs.program.fingerprints import FACT
from hccs.program.program import RERANK, TAG

Model = Annotated[Path, typer.Argument(help="A file that IntegerModel.save wrote, or its folder.")]


def info(json: Json = False) -> None:
    """Show the version and the instruction set that the native kernels use."""
    found, output = cpu.info(), Output(json)
    output.results(
        {
            "version": hccs.__version__,
            "isa": found.isa,
            "available": list(found.available),
            "cores": found.cores,
        }
    )
    if not json:
        output.say(f"hccs {hccs.__version__}")
        output.say(f"kernels: {found.isa} of {', '.join(found.available)}; {found.cores} cores")


def show(
    file: Model,
    json: Json = False,
) -> None:
    """List an integer model's operators, shapes, scales, bytes and products."""
    model, output = IntegerModel.load(find(file)), Output(json)
    output.results(as_dict(model.program))
    if not json:
        typer.echo(repr(model))


def fingerprint(
    model: Model,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compute it by the reference too; refuse unless it is the file's."),
    ] = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Print the SHA-256 of a model's answers to fixed inputs: the same wherever it runs correctly."""
    found = IntegerModel.load(find(model), device)
    computed = found.verify() if verify else found.fingerprint()
    stored = found.program.facts.get(FACT)
    output = Output(json)
    output.results({"fingerprint": computed, "stored": stored, "verified": verify})
    if not json:
        output.say(computed)


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run, or an integer model (model.hccs).")],
    texts: Annotated[
        list[str], typer.Argument(help="Texts; - reads them from stdin, one per line (pairs: a tab between).")
    ],
    json: Json = False,
) -> None:
    """Answer texts with a run's integer model: NumPy and tokenizers alone, no torch."""
    given = [line for text in texts for line in ([text] if text != "-" else _lines())]
    if not given:
        raise DataError("at least one text", "none", "Give texts as arguments, or lines on stdin for -.")
    found, output = answers(IntegerModel.load(find(run)), given), Output(json)
    output.results(found)
    rows = [
        [one["text"], one["label"], f"{one['score']:.4f}" if "score" in one else str(one["start"])]
        for part in found
        for one in part
    ]
    show_table(output.console, "", ["text", "label", "score, or first character"], rows)


def answers(model: IntegerModel, texts: list[str]) -> list[list[dict[str, Any]]]:
    """What a model answers to each text: its label with its probability, its value, or its spans."""
    from hccs.text import Classifier, Reranker, Tagger

    settings = model.program.text
    if settings is not None and settings.kind == TAG:
        return [[asdict(tag) for tag in tags] for tags in Tagger(model).tag(texts)]
    pairs = [text.split("\t", 1) if "\t" in text else text for text in texts]
    if settings is not None and settings.kind == RERANK:
        if not all("\t" in text for text in texts):
            raise DataError("a query and a passage with a tab between them", "one text", "Write a tab.")
        found = [(model.labels[0], float(Reranker(model).scores(p[0], [p[1]])[0])) for p in pairs]
    else:
        found = [(one.label, one.score) for one in Classifier(model).predict(pairs)]
    return [[{"text": t, "label": label, "score": s}] for t, (label, s) in zip(texts, found, strict=True)]


def _lines() -> list[str]:
    return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
