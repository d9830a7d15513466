"""The command tree: every command of `hccs` is registered here, and only here."""

from __future__ import annotations

from typing import Annotated

import typer

import hccs
from hccs.cli import (
    aie,
    bench,
    calibrate,
    compare,
    convert,
    demo,
    export,
    info,
    report,
    reproduce,
    show,
    where,
)
from hccs.cli.boundary import Commands
from hccs.cli.perplexity import perplexity

app = typer.Typer(
    name="hccs",
    cls=Commands,
    help="Integer-native attention: head-calibrated clipped-linear softmax.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(info.info)
app.command()(calibrate.calibrate)
app.add_typer(aie.app, name="aie")
app.command()(convert.convert)
app.command()(convert.evaluate)
app.command()(perplexity)
app.command()(show.show)
app.command()(where.where)
app.command()(report.report)
app.command()(compare.compare)
app.command()(bench.bench)
app.command()(demo.demo)
app.add_typer(export.app, name="export")
app.add_typer(reproduce.app, name="reproduce")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hccs {hccs.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Integer-native attention: head-calibrated clipped-linear softmax."""
