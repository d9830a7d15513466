"""The `hccs` command. Each command parses, calls one function and prints; one file per group of commands."""

from __future__ import annotations

import io
import sys

from hccs.errors import MissingExtraError


def main() -> None:
    """Entry point: errors and interruptions become one readable line instead of a traceback."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        sys.stderr.write("hccs: stopped\n")
        sys.exit(130)


def _run() -> None:
    try:
        from hccs.cli.app import app
    except ModuleNotFoundError as error:
        from hccs._extras import how_to_install

        sys.exit(f"hccs: the command line needs {error.name}. {how_to_install('text')}")
    except MissingExtraError as error:  # a package without its compiled modules
        sys.exit(f"hccs: {error}")

    from hccs.cli.boundary import Stopped, explained, one_line_warnings

    one_line_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        app()
    except Stopped:
        raise
    except SystemExit as ended:
        if ended.code == 130:  # typer has met Ctrl-C before the command began, and says nothing
            raise KeyboardInterrupt from None
        raise
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        sys.exit(f"hccs: {line}")
