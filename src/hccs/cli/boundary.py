"""What leaves the commands: errors, warnings and interruptions, each as one line."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any, TextIO

from typer.core import TyperGroup

from hccs._extras import require
from hccs.errors import HccsError

RESUMABLE = ("convert", "embed", "demo", "compare", "reproduce")
"""Commands that resume where they stopped."""


class Stopped(SystemExit):
    """The end of a command by Ctrl-C, which has printed its one line."""

    def __init__(self, line: str) -> None:
        print(line, file=sys.stderr)
        super().__init__(130)


class Commands(TyperGroup):
    """The command tree; Ctrl-C ends a command with a line that says whether its work is kept."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            told = "hccs: stopped" + "; the same command resumes" * (ctx.invoked_subcommand in RESUMABLE)
            raise Stopped(told) from None


def require_models() -> None:
    """Refuse a command that runs models where packages are missing, and name the extra that brings them."""
    for package in ("torch", "transformers", "accelerate"):
        require(package, "hf")


def explained(error: Exception) -> str | None:
    """An error in one line, or None for one that nobody expected: it keeps its traceback."""
    if isinstance(error, HccsError):
        return _one_line(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or _one_line(error)}. Check the path, its permissions and free space."
    if _is_failed_write(error):
        return f"a file could not be written ({_one_line(error)}). Is the disk full?"
    return None


_TORCH_WRITERS = ("PytorchStreamWriter", "inline_container.cc", "iostream")
"""Names in what torch reports of a file that it cannot write."""


def _is_failed_write(error: Exception) -> bool:
    """torch has errors of its own for a full disk; writers in Rust quote the system's number."""
    text = str(error)
    if re.search(r"\(os error \d+\)|i/o error", text, re.IGNORECASE):
        return True
    return isinstance(error, RuntimeError) and any(name in text for name in _TORCH_WRITERS)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def one_line_warnings() -> None:
    """Show warnings without the line of source that they came from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        print(f"hccs: {_one_line(message)}", file=file or sys.stderr)

    warnings.showwarning = show
