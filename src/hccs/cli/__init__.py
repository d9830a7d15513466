"""The `hccs` command. Each command parses, calls one function and prints; one file per group of commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: an `HccsError` becomes one readable message instead of a traceback."""
    try:
        from hccs.cli.app import app
    except ModuleNotFoundError as error:
        from hccs._extras import how_to_install

        sys.exit(f"hccs: the command line needs {error.name}. {how_to_install('cli')}")

    from hccs.errors import HccsError

    try:
        app()
    except HccsError as error:
        sys.exit(f"hccs: {error}")
