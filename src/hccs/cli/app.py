"""The command tree: every command of `hccs` is registered here, and only here."""

from __future__ import annotations

import typer

from hccs.cli import aie, calibrate, compare, convert, demo, export, info, reproduce

app = typer.Typer(
    name="hccs",
    help="Integer-native attention: head-calibrated clipped-linear softmax.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(info.info)
app.command()(calibrate.calibrate)
app.add_typer(aie.app, name="aie")
app.command()(convert.convert)
app.command()(convert.evaluate)
app.command()(compare.compare)
app.command()(demo.demo)
app.add_typer(export.app, name="export")
app.add_typer(reproduce.app, name="reproduce")


@app.callback()
def _root() -> None:
    """Keeps `hccs NAME` a sub-command even while there is only one."""
