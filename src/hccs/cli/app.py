"""The command tree: every command of `hccs` is registered here, and only here."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

import hccs
from hccs._extras import require_distribution
from hccs.cli import calibrate, convert, export, models, runs
from hccs.cli.boundary import Commands
from hccs.cli.embed import embed, search
from hccs.cli.generate import generate
from hccs.cli.serve import serve

app = typer.Typer(
    name="hccs",
    cls=Commands,
    help="Integer-native attention: head-calibrated clipped-linear softmax.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (
    models.info,
    calibrate.calibrate,
    convert.convert,
    runs.evaluate,
    models.predict,
    generate,
    serve,
    embed,
    search,
    models.show,
    models.fingerprint,
    runs.report,
):
    app.command()(_command)
app.add_typer(export.app, name="export")

COMMANDS_ELSEWHERE = {
    "aie": "hccs_aie",
    "bench": "hccs_lab",
    "compare": "hccs_lab",
    "demo": "hccs_lab",
    "reproduce": "hccs_lab",
}
"""Commands of distributions that may not be installed, with the package that each comes from."""


def _add_commands_of_other_distributions() -> None:
    """Register what the entry points `hccs.commands` name; a missing command says what to install."""
    found = {entry.name: entry for entry in entry_points(group="hccs.commands")}
    for name in sorted({*COMMANDS_ELSEWHERE, *found}):
        if name not in found:
            _add_missing(name, COMMANDS_ELSEWHERE[name])
            continue
        command = found[name].load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def _add_missing(name: str, package: str) -> None:
    @app.command(
        name, hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )
    def missing(context: typer.Context) -> None:
        require_distribution(package, f"hccs {name}")


_add_commands_of_other_distributions()


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
