"""The `hccs` command. Each command parses, calls one function and prints; one file per group of commands."""

from __future__ import annotations

import io
import sys

from hccs.errors import MissingExtraError


def main() -> None:
    """Entry point: what goes wrong becomes one readable line instead of a traceback."""
    try:
        from hccs.cli.app import app
    except ModuleNotFoundError as error:
        from hccs._extras import how_to_install

        sys.exit(f"hccs: the command line needs {error.name}. {how_to_install('text')}")
    except MissingExtraError as error:  # a package without its compiled modules
        sys.exit(f"hccs: {error}")

    from hccs.cli.boundary import explained, one_line_warnings

    one_line_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        app()
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        sys.exit(f"hccs: {line}")
