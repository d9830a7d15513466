"""A run's folder: settings, artefacts and `results.json`, worked on by one run at a time, which can go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from hccs.conversion.runs import lock
from hccs.conversion.runs.processes import state
from hccs.conversion.runs.record import StageRecord, read_json, write_json
from hccs.errors import FileError

TEMPORARY = re.compile(r"\..+\.(json|safetensors|hccs|md|png|html)\.[a-z0-9_]{8}(\.partial)?")
"""Names under which `hccs._files` writes before it renames; a killed run leaves one behind."""


class RunFolder:
    """The folder of a run: to be entered by `with`, which opens or creates it and holds its lock.

    Settings that differ from those the run was begun with are refused, and so is a folder of other files,
    unless it holds `marker`, by which a run without settings is known. Of the processes that `accelerate
    launch` starts only the main one takes the lock and writes.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], marker: str = "settings.json") -> None:
        self.path, self.marker = Path(path), marker
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as they will be read back
        self._lock = lock.FolderLock(self.path)
        self._record: StageRecord | None = None

    def __enter__(self) -> RunFolder:
        processes = state()
        try:
            with processes.main_process_first():
                if processes.is_main_process:
                    self._open()
                self._record = StageRecord(self.path / "results.json")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _open(self) -> None:
        begun = self.path / "settings.json"
        self._refuse_other_files()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"{self.path} to be a folder to write in",
                error.strerror or str(error),
                "Choose another --out.",
            ) from error
        self._lock.take()
        for path in self.path.rglob(".*"):
            if TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if not begun.exists():
            write_json(begun, self.settings)
            return
        before = read_json(begun, "Delete the folder to begin anew, or choose another --out.")
        # A setting that an earlier version did not know is None there: the run goes on with what is usual.
        changed = sorted(k for k in {*before, *self.settings} if before.get(k) != self.settings.get(k))
        if changed:
            raise FileError(
                f"the settings that {self.path} was begun with",
                f"other values of {', '.join(changed)}",
                "Use another --out, or the same settings to go on.",
            )

    def require_free(self) -> None:
        """Refuse a folder of other files, and one in which another run is at work, before any is written."""
        self._refuse_other_files()
        if self.path.is_dir():
            self._lock.take()
            self._lock.release()

    def _refuse_other_files(self) -> None:
        if not self.path.is_dir():  # what is no folder either is refused when it is made
            return
        names = {path.name for path in self.path.iterdir()}
        others = {name for name in names - {lock.NAME} if not TEMPORARY.fullmatch(name)}
        if others and not others & {"settings.json", self.marker}:
            raise FileError(
                f"{self.path} to be a new folder or a run to go on with",
                "a folder of other files",
                "Nothing was written: choose another --out.",
            )

    @property
    def record(self) -> StageRecord:
        """The stages in `results.json`."""
        assert self._record is not None, "the folder is entered by `with`"
        return self._record

    @property
    def results(self) -> dict[str, Any]:
        """The content of `results.json`."""
        return self.record.content

    def stage(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result and the `seconds` of a stage of the run, recorded or those of `work`."""
        return {**self.record.stage(name, work), "seconds": self.record.seconds.get(name)}

    def done(self, name: str) -> bool:
        """Whether a stage of the run has finished."""
        return self.record.done(name)
