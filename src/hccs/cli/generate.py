"""`hccs generate`: the continuation of a prompt, as it comes."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from hccs.cli.output import Device, Json, Output


def generate(
    model: Annotated[str, typer.Argument(help="A .hccs file of a language model, or a folder with one.")],
    prompt: Annotated[str, typer.Argument(help="The beginning of the text.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 128,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token, 1 draws as the model says.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this share.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names the text; by default one is drawn.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="By default as many as pay.")] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Continue a prompt with a language model in integers: a seed names the same text on every machine."""
    from hccs.program.generation import FULL
    from hccs.text.generator import Generator

    output = Output(json)
    if seed is None:
        seed = secrets.randbits(32) if temperature else 0  # known before the text, which Ctrl-C may cut
    count = 0

    def show(_: int, piece: str) -> None:
        nonlocal count
        count += 1
        if not json:
            sys.stdout.write(piece)
            sys.stdout.flush()

    try:
        found = Generator.load(model, device).generate(
            prompt,
            max_new_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            on_text=show,
            threads=threads,
        )
    except KeyboardInterrupt:
        if count:
            sys.stdout.write("\n")
            sys.stdout.flush()
        raise
    finally:
        if temperature and count:
            typer.echo(f"\nhccs: --seed {seed} names this text", err=True)
    output.results(asdict(found))
    if json:
        return
    sys.stdout.write("\n")
    if found.end == FULL:
        typer.echo("hccs: the text ends here: the model has no more positions", err=True)
