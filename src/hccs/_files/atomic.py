"""Writing a file, or a folder: whole or not at all, and a disk that cannot take it is a `FileError`."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hccs.errors import FileError

TEMPORARY = ".partial"
"""How the name of a file that is not yet complete ends; it begins with a dot."""

_HINTS = {
    errno.ENOSPC: "Free some space or write elsewhere; nothing was changed.",
    errno.EDQUOT: "Free some space or write elsewhere; nothing was changed.",
    errno.ENOENT: "Create the folder first.",
    errno.EISDIR: "Name a file, not a folder.",
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` once the block ends without an error.

    Until then it stands beside its target under a temporary name. It is on the disk before it is renamed, so
    that a crash leaves the old file or the new one. Permissions are those of the old file or, as everywhere,
    the umask's. The target of a symbolic link is replaced, not the link.
    """
    target = Path(os.path.realpath(path))
    with _refusing(path):
        file = _temporary(target)
    try:
        with _refusing(path):
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(file.name)
        raise
    settle(target.parent)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to make and fill, which takes the place of `path` once the block ends without an error.

    What a process that was killed left of one is removed by the next that writes the same folder.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}{TEMPORARY}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with _refusing(path):
            yield fresh
            shutil.rmtree(target, ignore_errors=True)
            os.replace(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    settle(target.parent)


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a target that `replacing` could not write, before anything is computed for it."""
    with _refusing(path):
        file = _temporary(Path(os.path.realpath(path)))
        file.close()
        os.unlink(file.name)


def _temporary(target: Path) -> BinaryIO:
    """A new file beside `target`, with the permissions that the target has or would get."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "A device or a pipe")  # /dev/null must not become a file
    name = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    file = open(name, "xb")  # noqa: SIM115
    with suppress(OSError):  # no old file, or permissions that only its owner may copy
        os.chmod(name, target.stat().st_mode & 0o777)
    return file


@contextmanager
def _refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "Check its permissions, or write elsewhere.")
        raise FileError(f"{path} to be writable", error.strerror or str(error), hint) from error


def settle(folder: Path) -> None:
    """Make the renames in a folder outlast a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
