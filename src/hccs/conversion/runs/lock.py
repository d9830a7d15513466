"""One run at a time in a folder: a lock that tells who holds it and that no killed process leaves behind.

The lock is `flock` on a file in the folder; the system releases it when its process ends, however that ends.
On NFS it holds as far as the server's lock service does. Where a file system has no locks at all a warning
says so, and the run goes on.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
import warnings
from pathlib import Path

from hccs.errors import FileError

NAME = ".hccs.lock"
"""The lock's file, there only while a run is under way or after it was killed."""


class FolderLock:
    """The sole right to work in a folder, from `take` to `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock; if another run has it, refuse and say which."""
        while self._handle is None:
            handle = self._open()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise self._taken() from error
                warnings.warn(
                    f"{self.path.parent} cannot be locked ({error.strerror}): start no second run in it",
                    stacklevel=2,
                )
                return
            if _same_file(handle, self.path):
                self._handle = handle
                os.ftruncate(handle, 0)
                os.write(handle, _holder().encode())
            else:  # its last holder has just removed the file
                os.close(handle)

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        if self._handle is not None:
            # Removed while it is held: whoever opened it meanwhile finds another file, or none, by its name.
            self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise FileError(
                f"{self.path.parent} to be a folder to write in",
                error.strerror or str(error),
                "Choose another --out.",
            ) from error

    def _taken(self) -> FileError:
        try:
            told = json.loads(self.path.read_bytes())
            by = f"process {told['pid']} on {told['host']} since {told['since']}: {told['command']}"
        except (OSError, ValueError, KeyError, TypeError):
            by = "another process"  # it has not said its name yet
        return FileError(
            f"{self.path.parent} to be free",
            f"a run under way in it, by {by}",
            "Wait until it has ended, or choose another --out.",
        )


def _holder() -> str:
    program = Path(sys.argv[0])
    if program.name == "__main__.py":  # python -m NAME
        program = program.parent
    command = shlex.join([program.name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    told = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command}
    return json.dumps(told)


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
