"""`hccs perplexity`: a causal language model calibrated on a text, and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output, on_run
from hccs.cli.tables import show


def perplexity(
    model: Annotated[
        str, typer.Argument(help="A folder with a causal language model of transformers, or a Hub name.")
    ],
    text: Annotated[Path, typer.Argument(help="A text in UTF-8 to calibrate on.")],
    dev: Annotated[Path, typer.Option(help="Another text, to score on.")],
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    n: Annotated[int, typer.Option(help="Tokens of a block, and of the longest row.")] = 64,
    mode: Annotated[str, typer.Option(help="The mode that is saved.")] = "i16_div",
    json: Json = False,
) -> None:
    """Put HCCS into a causal language model without training, and tell its perplexity before and after."""
    require_models()
    from hccs.conversion.language import LanguageSettings, convert_language
    from hccs.conversion.report.write import write_report

    output = Output(json)
    settings = LanguageSettings(model, str(text), str(dev), n, mode)
    found = convert_language(settings, out, output.say)
    show_perplexity(output.console, found)
    output.results(found)
    lines = [
        f"model in {out / 'model'}, everything in {out / 'results.json'}",
        f"report: {write_report(out)}",
    ]
    output.end("perplexity", lines, on_run(out, "report"))


def show_perplexity(console: Console, results: dict[str, Any]) -> None:
    """Float, every mode with one and two lines, and all in integers."""
    saved, modes = results["save"], results["modes"]["perplexity"]
    base = results["float"]["perplexity"]

    def cells(value: float) -> list[str]:
        return [f"{value:.3f}", f"{100 * (value / base - 1):+.2f}"]

    rows = [["float", f"{base:.3f}", ""]]
    for lines, scores in modes.items():
        for mode, value in scores.items():
            mark = ", delivered" if (lines, mode) == (saved["lines"], saved["mode"]) else ""
            rows.append([f"HCCS {mode}, {lines}{mark}", *cells(value)])
    if "perplexity" in results["whole"]:
        rows.append(["all in integers, one line", *cells(results["whole"]["perplexity"])])
    title = f"perplexity on {results['float']['blocks']} blocks; lower is better"
    show(console, title, ["model", "perplexity", "against float, %"], rows)
