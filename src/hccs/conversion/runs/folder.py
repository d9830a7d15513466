"""A run's folder: settings, artefacts and `results.json`; one run at a time works in it, and resumes."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from hccs.conversion.runs import state
from hccs.conversion.runs.record import VERSION, StageRecord, read_json, require_version, write_json
from hccs.errors import FileError

LOCK, HOLDER = ".hccs.lock", ".hccs.holder.json"
"""The lock and who holds it: there only while a run is under way or after it was killed."""

TEMPORARY = re.compile(r"\..+\.(json|safetensors|hccs|md|html|pt)\.[a-z0-9_]{8}(\.partial)?")
"""Names under which `hccs._files` writes before it renames; a killed run leaves one behind."""


class FolderLock:
    """The sole right to work in a folder, from `take` to `release`; the system releases a killed process's.

    On NFS it holds as far as the server's lock service does. Where a file system has no locks at all a
    warning says so, and the run goes on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = filelock.FileLock(folder / LOCK, timeout=0, mode=0o644)

    def take(self) -> None:
        """Take the lock; if another run has it, refuse and name that run."""
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise self._taken() from error
        except (OSError, NotImplementedError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise _unwritable(self.folder, error) from error
            warnings.warn(
                f"{self.folder} cannot be locked ({getattr(error, 'strerror', error)}): "
                "start no second run in it",
                stacklevel=2,
            )
            return
        (self.folder / HOLDER).write_text(_holder())

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        if self._lock.is_locked:
            # Removed while it is locked: a process that opened the file meanwhile notices and opens another.
            for name in (HOLDER, LOCK):
                with suppress(OSError):
                    (self.folder / name).unlink()
            self._lock.release()

    def _taken(self) -> FileError:
        try:
            told = json.loads((self.folder / HOLDER).read_bytes())
            by = f"process {told['pid']} on {told['host']} since {told['since']}: {told['command']}"
        except (OSError, ValueError, KeyError, TypeError):
            by = "another process"  # it has not written its name yet
        return FileError(
            f"{self.folder} to be free",
            f"a run under way in it, by {by}",
            "Wait until it has ended, or choose another --out.",
        )


def _holder() -> str:
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m NAME
        program = program.parent
    command = shlex.join([program.name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command})


def _unwritable(folder: Path, error: Exception) -> FileError:
    return FileError(
        f"{folder} to be a folder to write in",
        getattr(error, "strerror", None) or str(error),
        "Choose another --out.",
    )


class RunFolder:
    """The folder of a run: to be entered by `with`, which opens or creates it and holds its lock.

    Settings that differ from those the run was begun with are refused, and so is a folder of other files,
    unless it holds `marker`, by which a run without settings is known. Of the processes that `accelerate
    launch` starts only the main one takes the lock and writes.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], marker: str = "settings.json") -> None:
        self.path, self.marker = Path(path), marker
        self.settings: dict[str, Any] = json.loads(json.dumps({"version": VERSION, **settings}))
        self._lock = FolderLock(self.path)
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
            raise _unwritable(self.path, error) from error
        self._lock.take()
        for path in self.path.rglob(".*"):
            if TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)
        if not begun.exists():
            write_json(begun, self.settings)
            return
        before = read_json(begun, "Delete the folder to start over, or choose another --out.")
        require_version(before, begun)
        changed = sorted(k for k in {*before, *self.settings} if before.get(k) != self.settings.get(k))
        if changed:
            raise FileError(
                f"the settings that {self.path} was begun with",
                f"other values of {', '.join(changed)}",
                "Use another --out, or the same settings to resume the run.",
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
        others = {name for name in names - {LOCK, HOLDER} if not TEMPORARY.fullmatch(name)}
        if others and not others & {"settings.json", self.marker}:
            raise FileError(
                f"{self.path} to be a new folder or a run to resume",
                "a folder of other files",
                "Nothing was written: choose another --out.",
            )

    @property
    def record(self) -> StageRecord:
        assert self._record is not None, "the folder is entered by `with`"
        return self._record

    def stage(self, name: str, work: Callable[[], Any]) -> Any:
        return self.record.stage(name, work)

    def done(self, name: str) -> bool:
        return self.record.done(name)
