"""A run's folder: settings, artefacts and `results.json`, written stage by stage so that a run can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hccs._files import safetensors as _safetensors
from hccs.errors import FileError
from hccs.pipeline.runs.processes import state


class RunFolder:
    """Opens or creates a run; settings that differ from those it was begun with are refused."""

    def __init__(self, path: str | Path, settings: dict[str, Any]) -> None:
        self.path = Path(path)
        with state().main_process_first():
            self._open(settings)

    def _open(self, settings: dict[str, Any]) -> None:
        existing = self.path / "settings.json"
        settings = json.loads(json.dumps(settings))  # as they will be read back
        if existing.exists():
            before = read_json(existing)
            if before != settings:
                changed = sorted(k for k in {*before, *settings} if before.get(k) != settings.get(k))
                raise FileError(
                    f"the settings that {self.path} was begun with",
                    f"other values of {', '.join(changed)}",
                    "Use another --out, or the same settings to go on.",
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise FileError(
                f"{self.path} to be a new folder or a run to go on with",
                "a folder of other files",
                "Nothing was written: choose another --out.",
            )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            _write(existing, settings)
        found = self.path / "results.json"
        self.results: dict[str, Any] = read_json(found) if found.exists() else {"stages": {}}

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stage's recorded result, or that of `work`, which is recorded once it has finished."""
        stages = self.results["stages"]
        if name not in stages:
            began = time.perf_counter()
            result = work()
            stages[name] = {**result, "seconds": round(time.perf_counter() - began, 2)}
            if state().is_main_process:
                _write(self.path / "results.json", self.results)
            # The next stage reads what the main process has written.
            state().wait_for_everyone()
        recorded: dict[str, Any] = stages[name]
        return recorded

    def done(self, name: str) -> bool:
        """Whether a stage has finished."""
        return name in self.results["stages"]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of ours; a damaged one is refused."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise FileError(f"{path} to be intact JSON", str(error), "Is this the folder of a run?") from error
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    _safetensors.replace(path, json.dumps(content, indent=1).encode())
