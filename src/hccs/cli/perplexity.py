"""`hccs perplexity`: a causal language model calibrated on a text, and scored."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output, on_run
from hccs.cli.tables import show
from hccs.numbers.modes import Mode

if TYPE_CHECKING:
    from hccs.conversion.language import LanguageResults


def perplexity(
    model: Annotated[
        str, typer.Argument(help="A folder with a causal language model of transformers, or a Hub name.")
    ],
    text: Annotated[Path, typer.Argument(help="A text in UTF-8 to calibrate on.")],
    dev: Annotated[Path, typer.Option(help="Another text, to score on.")],
    out: Annotated[Path, typer.Option(help="The run's folder; the same command resumes an interrupted run.")],
    n: Annotated[int, typer.Option(help="Tokens per block, which is the longest row.")] = 64,
    mode: Annotated[Mode, typer.Option(help="The mode that is saved.")] = Mode.I16_DIV,
    json: Json = False,
) -> None:
    """Put HCCS into a causal language model without training, and show its perplexity before and after."""
    require_models()
    from hccs.conversion.language import LanguageSettings, convert_language
    from hccs.conversion.report.write import write_report

    output = Output(json)
    settings = LanguageSettings(model, str(text), str(dev), n, mode.value)
    with output.results_alone():
        found = convert_language(settings, out, output.say)
    show_perplexity(output.console, found)
    output.results(asdict(found))
    lines = [
        f"model in {out / 'model'}, everything in {out / 'results.json'}",
        f"report: {write_report(out)}",
    ]
    output.end("perplexity", lines, on_run(out, "report"))


def show_perplexity(console: Console, results: LanguageResults) -> None:
    """Float, every mode with one and two lines, and all in integers."""
    saved, base = results.save, results.float_model.perplexity

    def cells(value: float) -> list[str]:
        return [f"{value:.3f}", f"{100 * (value / base - 1):+.2f}"]

    rows = [["float", f"{base:.3f}", ""]]
    for lines, scores in results.modes.perplexity.items():
        for mode, value in scores.items():
            mark = ", delivered" if (lines, mode) == (saved.lines, saved.mode) else ""
            rows.append([f"HCCS {mode}, {lines}{mark}", *cells(value)])
    if results.integer.perplexity is not None:
        rows.append(["all in integers, one line", *cells(results.integer.perplexity)])
    title = f"perplexity on {results.float_model.blocks} blocks; lower is better"
    show(console, title, ["model", "perplexity", "against float, %"], rows)
