"""The results of named stages in one JSON file, each written as soon as it is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.runs.processes import state
from hccs.errors import FileError


class StageRecord:
    """Does a stage once: a result that the file holds is returned, any other is computed and written.

    A process that is killed loses at most the stage it was in. `renamed` maps names of stages that an earlier
    version wrote to those they have now.
    """

    def __init__(self, path: Path, renamed: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.stages: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        if path.exists():
            self._read(renamed or {})

    def _read(self, renamed: Mapping[str, str]) -> None:
        content = read_json(self.path, REDO)
        # Earlier versions kept the stages beside the seconds instead of under a name of their own.
        stages = content.get("stages", {name: value for name, value in content.items() if name != "seconds"})
        seconds = content.get("seconds", {})
        if not isinstance(stages, dict) or not isinstance(seconds, dict):
            raise FileError(f"{self.path} to hold results by stage", "something else", REDO)
        self.stages = {renamed.get(name, name): value for name, value in stages.items()}
        self.seconds = {renamed.get(name, name): value for name, value in seconds.items()}

    def stage(self, name: str, work: Callable[[], Any]) -> Any:
        """The stage's recorded result, or that of `work`, which is recorded once it has finished."""
        if name not in self.stages:
            began = time.perf_counter()
            self.stages[name] = work()
            self.seconds[name] = round(time.perf_counter() - began, 2)
            if state().is_main_process:
                write_json(self.path, self.content)
            # The next stage reads what the main process has written.
            state().wait_for_everyone()
        return self.stages[name]

    def done(self, name: str) -> bool:
        """Whether a stage has finished."""
        return name in self.stages

    @property
    def content(self) -> dict[str, Any]:
        """What the file holds: results and seconds, by stage."""
        return {"stages": self.stages, "seconds": self.seconds}


REDO = "Delete that file to do its stages again."
"""What to do about a damaged record."""


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The object in a JSON file of ours; a damaged one is refused with a hint."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} to be intact JSON", str(error) or type(error).__name__, hint) from error
    if not isinstance(content, dict):
        raise FileError(f"{path} to hold a JSON object", type(content).__name__, hint)
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file that appears whole or not at all."""
    atomic.replace(path, json.dumps(content, indent=1).encode())
