"""`hccs demo`: semantic search with the embedding model that ships, then a conversion with what ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hccs.cli.output import Output
from hccs.errors import require_one_of

PARTS = ("search", "convert", "all")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run, its table and figures.")] = Path(
        "build/demo"
    ),
    part: Annotated[str, typer.Option(help=f"One of {', '.join(PARTS)}.")] = "all",
) -> None:
    """Search movie reviews by meaning, then convert a BERT-tiny: with what ships, no network needed."""
    require_one_of("--part", part, PARTS, "Leave it out for both.")
    output = Output()
    if part != "convert":
        _search(output)
    if part != "search":
        _convert(output, out)


def _search(output: Output) -> None:
    from hccs_lab.demo.search import search

    made = search(output.say)
    for found in made.found:
        output.say(f"\n{found.query!r}")
        for cosine, review in found.reviews:
            output.say(f"  {cosine:.3f}  {review}")
    beside = (
        ""
        if made.onnx_ms is None
        else f"; its ONNX export, same bits, in ONNX Runtime: {made.onnx_ms:.1f} ms"
    )
    lines = [
        f"{made.reviews} reviews at {made.per_second:,.0f} per second",
        f"a query, text to vector: {made.query_ms:.1f} ms{beside}",
        f"fingerprint {made.fingerprint}",
        "Every machine computes the same vectors, and so this fingerprint: README.md has it, too.",
    ]
    output.end("search by meaning", lines, {})


def _convert(output: Output, out: Path) -> None:
    from hccs.cli.boundary import require_models

    require_models()
    from hccs.cli.convert import show_end, show_summary
    from hccs_lab.demo import demo as run

    found = run(out, output.say)
    show_summary(output.console, found.results)
    show_end(output, found)
