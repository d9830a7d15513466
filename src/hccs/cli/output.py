"""What a command prints: lines and tables for people, or one JSON document for machines."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from hccs._progress import duration
from hccs.conversion.runs.record import finite

Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:<number>: the answers are the same.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the results as JSON on stdout, everything else on stderr.")
]


class Output:
    """Prints lines and tables; with `json` stdout carries the results alone."""

    def __init__(self, json: bool = False, *, quiet: bool = False) -> None:
        self.json = json
        self.console = Console(stderr=json, quiet=quiet)

    def say(self, line: str = "") -> None:
        """A line as it stands: brackets are no markup, and only a terminal breaks it."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def results_alone(self) -> Iterator[None]:
        """With `json`, send what other code prints to stderr: a metric of the user's own may print."""
        with redirect_stdout(sys.stderr if self.json else sys.stdout):
            yield

    def results(self, found: Any) -> None:
        """The results for machines, if they were asked for."""
        if self.json and not self.console.quiet:
            sys.stdout.write(json.dumps(finite(found), indent=1, default=str) + "\n")

    def end(self, title: str, lines: Sequence[str], commands: Mapping[str, str]) -> None:
        """The end of a command: what was found, where it is, and what to do next; a panel on a terminal."""
        width = max(map(len, commands), default=0)
        body = Text()
        for line in lines:
            body.append(f"{line}\n")
        for number, (what, command) in enumerate(commands.items()):
            body.append("\n" if number else "\nnext\n" if lines else "next\n")
            body.append(f"  {what.ljust(width)}  ", style="dim")
            body.append(command, style="bold")
        if self.console.is_terminal:
            self.console.print(
                Panel(body, title=title, title_align="left", border_style="dim", padding=(1, 2))
            )
            return
        self.say()
        self.say(title)
        self.say(body.plain)


def stage_times(seconds: Mapping[str, float]) -> str:
    """Where the time of a run went, the longest stages first."""
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {duration(spent)}" for name, spent in longest[:4])
    return f"{duration(sum(seconds.values()))} in all: {parts}"


def on_run(run: Path, *commands: str) -> dict[str, str]:
    """`hccs COMMAND RUN` for each command, by what it does."""
    names = {
        "predict": "ask it",
        "evaluate": "score it in any mode",
        "bench": "time it here",
        "report": "write the report",
        "show": "its operators",
        "export c": "for a microcontroller",
        "export onnx": "for ONNX Runtime",
        "compare": "beside other methods",
    }
    texts = {"predict": ' "a text"'}
    where = shlex.quote(str(run))
    return {names[command]: f"hccs {command} {where}{texts.get(command, '')}" for command in commands}
