"""The `hccs` command. Each command parses, calls one function and prints; one file per group of commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: an `HccsError` becomes one readable message instead of a traceback."""
    try:
        from hccs.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f"hccs: the command line needs {error.name}. Install it with: pip install 'hccs[cli]'")

    from hccs.errors import HccsError

    try:
        app()
    except HccsError as error:
        sys.exit(f"hccs: {error}")
