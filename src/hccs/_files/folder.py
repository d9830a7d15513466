"""Folders that an export owns: only its own files are written, replaced or removed.

`.hccs-export.json` in the folder lists what the export wrote. New files are staged beside the old ones and
then renamed over them one by one, so that a file is whole, old or new, whenever the writer is stopped; the
list says until the end that the export is not complete, and the next export finishes the work.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hccs._files.atomic import settle
from hccs.errors import FileError

MANIFEST = ".hccs-export.json"
"""The list of an export's files, in its folder."""

_STAGING = ".hccs-export.new"
_NAMED = 3
"""Maximum number of foreign files listed in an error."""


@dataclass(frozen=True)
class Manifest:
    """What an export wrote into its folder, by relative name; not `complete` while files are replaced."""

    files: frozenset[str]
    complete: bool

    def text(self) -> str:
        content = {"format": "hccs.export", "version": 1, "complete": self.complete}
        return json.dumps({**content, "files": sorted(self.files)}, indent=1) + "\n"

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        if not (folder / MANIFEST).exists():
            return None
        try:
            content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(folder, str(error)) from error
        match content:
            case {"format": "hccs.export", "version": 1, "complete": bool(complete), "files": [*files]}:
                if all(isinstance(name, str) for name in files):
                    return cls(frozenset(files), complete)
        raise _damaged(folder, f"{content!r:.60}")


def _damaged(folder: Path, got: str) -> FileError:
    return FileError(
        f"{folder / MANIFEST} to be the list of an export's files, version 1",
        got,
        "Choose another --out; if nothing of yours is in the folder, delete it.",
    )


def require_free(path: str | os.PathLike[str], *, products: Collection[str] = ()) -> None:
    """Refuse what `replace` would refuse, before any work is done for its files."""
    folder = Path(path)
    with _one_line(folder):
        target = _target(folder)
        if target.exists():
            _require_ours(target, folder, products)
        existing = next(place for place in (target, *target.parents) if place.exists())
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(f"{existing} is read-only")


def replace(
    path: str | os.PathLike[str],
    contents: Mapping[str, str | bytes],
    *,
    products: Collection[str] = (),
) -> Path:
    """Write files by relative name into the folder `path`, in the place of an earlier export's.

    The folder may be new, empty or an earlier export; anything else in it is refused and nothing is touched.
    `products` are names directly in the folder that a build of the export makes: they may be there, and stay.
    """
    folder = Path(path)
    with _one_line(folder):
        target = _target(folder)
        fresh = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target, folder):
            old = _require_ours(target, folder, products)
            try:
                _stage(target, contents)
            except BaseException:
                shutil.rmtree(target / _STAGING, ignore_errors=True)
                if fresh:
                    with suppress(OSError):
                        target.rmdir()
                raise
            _take_over(target, old, frozenset(contents))
    return folder


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """What the system refuses as a `FileError`; paths may also be loops of links or hold a NUL."""
    try:
        yield
    except FileError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise FileError(
            f"a folder at {folder} that can be written",
            str(error),
            "Check its permissions and the space on its disk, or choose another --out.",
        ) from error


def _target(folder: Path) -> Path:
    """What is written where the path is a link: the folder that it leads to. The link stays."""
    target = folder.resolve()
    if target.exists() and not target.is_dir():
        raise FileError(f"{folder} to be a folder", "a file of that name", "Choose another --out.")
    return target


@contextmanager
def _alone(target: Path, folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system takes it back from a writer that is killed."""
    handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{folder} to be written by one export at a time",
                "another one at work",
                "Wait for it, or choose another --out.",
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _require_ours(target: Path, folder: Path, products: Collection[str]) -> frozenset[str]:
    """The names of an earlier export's files that are in the folder; refuses files of anyone else."""
    found = _names(target, skip={MANIFEST, _STAGING, *products})
    manifest = Manifest.load(target)
    foreign = found - (frozenset() if manifest is None else manifest.files)
    if foreign:
        first = [name if name.isprintable() else ascii(name) for name in sorted(foreign)]
        more = f" and {len(first) - _NAMED} more" if len(first) > _NAMED else ""
        raise FileError(
            f"{folder} to be new, empty, or an earlier export",
            f"files that no export wrote: {', '.join(first[:_NAMED])}{more}",
            "Move them away, or choose another --out.",
        )
    return found


def _names(target: Path, skip: Collection[str]) -> frozenset[str]:
    """Files below a folder by relative name; a link counts as a file, wherever it leads."""
    files = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(target).as_posix() for path in files)
    return frozenset(name for name in names if name.split("/")[0] not in skip)


def _stage(target: Path, contents: Mapping[str, str | bytes]) -> None:
    """Put every new file on disk, where nothing old is in its way: a full disk is found out here."""
    staging = target / _STAGING
    if staging.exists():
        shutil.rmtree(staging)  # of an export that was killed
    for name, content in contents.items():
        _write(staging / name, content)


def _write(file: Path, content: str | bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())


def _take_over(target: Path, old: frozenset[str], new: frozenset[str]) -> None:
    """Rename what is staged over the old files, then remove what only the old export had."""
    staging = target / _STAGING
    _record(target, Manifest(old | new, complete=False))
    for name in sorted(new):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / name, target / name)
    for name in sorted(old - new):
        (target / name).unlink()
        folder = (target / name).parent
        while folder != target and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
    for folder in {target, *((target / name).parent for name in new)}:
        settle(folder)
    _record(target, Manifest(new, complete=True))
    shutil.rmtree(staging)


def _record(target: Path, manifest: Manifest) -> None:
    _write(target / _STAGING / MANIFEST, manifest.text())
    os.replace(target / _STAGING / MANIFEST, target / MANIFEST)
    settle(target)
