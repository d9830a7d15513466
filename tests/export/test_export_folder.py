"""Folders that exports write into: nobody else's files are touched, and a kill leaves an export behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hccs._files.folder import MANIFEST, Manifest, replace, require_free
from hccs.errors import FileError

OLD = {"parameters.h": "old", "vectors.txt": "old", "data/in0.txt": "old", "data/in1.txt": "old"}
NEW = {"parameters.h": "new", "vectors.txt": b"new", "data/in0.txt": "new", "source/kernel.h": "new"}


def texts(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def expected(contents: dict[str, Any]) -> dict[str, str]:
    return {name: text if isinstance(text, str) else text.decode() for name, text in contents.items()}


def in_child(work: Callable[[], object]) -> int:
    """The wait status of a child process that does the work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads; the child needs none
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed before its step-th change of the disk; False if it ends."""

    def watched() -> None:
        left = step

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            writes = event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()

    status = in_child(watched)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


def test_killed_anywhere_an_export_is_left_and_the_next_one_completes_it(tmp_path: Path) -> None:
    step = 1
    while True:
        folder = replace(tmp_path / f"{step}", OLD)
        stopped = killed_at(step, lambda folder=folder: replace(folder, NEW))  # type: ignore[misc]
        found = {name: text for name, text in texts(folder).items() if not name.startswith(".")}
        if not stopped:
            break
        for name in OLD.keys() & NEW.keys():
            assert found.pop(name) in ("old", "new")
        assert set(found) <= {*OLD, *NEW}
        manifest = Manifest.load(folder)
        assert manifest is not None and set(found) <= manifest.files
        (folder / "thesis.tex").write_text("mine")
        with pytest.raises(FileError, match=r"thesis\.tex"):
            replace(folder, NEW)
        (folder / "thesis.tex").unlink()
        replace(folder, NEW)
        assert texts(folder) == expected(NEW)
        step += 1
    assert step > 15
    assert found == texts(folder) == expected(NEW)
    assert not (folder / "data/in1.txt").exists()


def test_killed_while_the_first_export_is_written(tmp_path: Path) -> None:
    step, folder = 1, tmp_path / "1"
    while killed_at(step, lambda folder=folder: replace(folder, NEW)):  # type: ignore[misc]
        manifest = Manifest.load(folder) if folder.exists() else None
        if manifest is not None and manifest.complete:
            assert expected(NEW).items() <= texts(folder).items()
        assert texts(replace(folder, NEW)) == expected(NEW)
        step += 1
        folder = tmp_path / f"{step}"
    assert step > 10


def test_folders_without_files_go_with_the_last_one(tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", {"a/b/c.txt": "", "d.txt": ""})
    replace(folder, {"d.txt": ""})
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, "d.txt"]


def test_foreign_files_are_named_and_left(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("parameters.h", "b.txt", "a\nb.txt", "data"):
        (folder / name).write_text("mine")
    before = texts(folder)
    with pytest.raises(FileError, match=r"no export wrote: 'a\\nb.txt', b.txt, data and 1 more. Move them"):
        replace(folder, NEW)
    assert texts(folder) == before
    assert not (folder / MANIFEST).exists()


@pytest.mark.parametrize("name", ["source/notes.txt", "vectors.txt~", ".git/config", "source/kernel.h/x"])
def test_a_file_among_an_exports_own_stops_the_next_one(name: str, tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", OLD)
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("mine")
    with pytest.raises(FileError, match="earlier export"):
        replace(folder, NEW)
    assert texts(folder) == {**OLD, name: "mine"}


def test_a_file_of_the_same_name_as_a_new_one_is_foreign_too(tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", {"a.txt": "old"})
    (folder / "b.txt").write_text("mine")
    with pytest.raises(FileError, match=r"b\.txt"):
        replace(folder, {"a.txt": "new", "b.txt": "new"})
    assert texts(folder) == {"a.txt": "old", "b.txt": "mine"}


def test_a_list_from_elsewhere_removes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    folder = replace(tmp_path / "out", {"a.txt": "old"})
    forged = Manifest(frozenset({"a.txt", "../precious.txt", str(tmp_path / "precious.txt")}), True)
    (folder / MANIFEST).write_text(forged.text())
    replace(folder, {"b.txt": "new"})
    assert texts(folder) == {"b.txt": "new"}
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_links_stay_links_and_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out"
    link.symlink_to("disk")
    assert replace(link, NEW) == link
    assert link.is_symlink()
    assert texts(tmp_path / "disk") == expected(NEW)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = replace(tmp_path / "folder", {"a.txt": "old"})
    (folder / "source").symlink_to(elsewhere)
    with pytest.raises(FileError, match="no export wrote: source"):
        replace(folder, NEW)
    assert not any(elsewhere.iterdir())


def test_what_a_build_made_may_stay(tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", OLD)
    (folder / "program").write_text("built")
    (folder / "Work").mkdir()
    (folder / "Work" / "log").write_text("built")
    replace(folder, NEW, products=("program", "Work"))
    assert texts(folder) == {**expected(NEW), "program": "built", "Work/log": "built"}
    require_free(folder, products=("program", "Work"))
    for refuse in (require_free, lambda folder: replace(folder, NEW)):
        with pytest.raises(FileError, match="Work/log, program"):
            refuse(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\udcff",
        "[" * 100_000,
        '{"format": "other", "version": 1, "complete": true, "files": []}',
        '{"format": "hccs.export", "version": 2, "complete": true, "files": []}',
        '{"format": "hccs.export", "version": 1, "complete": 1, "files": []}',
        '{"format": "hccs.export", "version": 1, "complete": true, "files": [1]}',
        '{"format": "hccs.export", "version": 1, "complete": true}',
    ],
)
def test_a_damaged_list_is_refused(text: str, tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", OLD)
    (folder / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FileError, match="list of an export's files"):
        replace(folder, NEW)
    assert texts(folder) == OLD


def test_paths_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o777)
    (tmp_path / "loop").symlink_to("loop")
    paths = [tmp_path / "file", tmp_path / "file" / "below", tmp_path / "loop"]
    paths += [tmp_path / ("x" * 300), tmp_path / "nul\0"]
    for path in paths:
        with pytest.raises(FileError) as refused:
            replace(path, NEW)
        assert "\n" not in str(refused.value)
        with pytest.raises(FileError) as refused:
            require_free(path)
        assert "\n" not in str(refused.value)
    with pytest.raises(FileError, match="that can be written"):
        replace("/proc/hccs/out", NEW)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_folder_is_refused_before_and_while_writing() -> None:
    with tempfile.TemporaryDirectory() as name:  # not pytest's, which only its owner may enter
        root = Path(name)
        folder = replace(root / "out", OLD)

        def write() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            for path in (folder, root / "new"):
                with pytest.raises(FileError, match="read-only"):
                    require_free(path)
                with pytest.raises(FileError, match=os.strerror(errno.EACCES)):
                    replace(path, NEW)

        for place in (folder, root):
            place.chmod(0o555)
        assert in_child(write) == 0
        assert texts(folder) == OLD
        for place in (root, folder):
            place.chmod(0o755)


def test_a_full_disk_leaves_the_old_export(tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", OLD)

    def full(path: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(FileError, match=os.strerror(errno.EFBIG)):
            replace(path, {**NEW, "vectors.txt": "x" * 5000})

    assert in_child(lambda: full(folder)) == 0
    assert texts(folder) == OLD
    assert in_child(lambda: full(tmp_path / "fresh")) == 0
    assert not (tmp_path / "fresh").exists()


def test_one_export_at_a_time(tmp_path: Path) -> None:
    folder = replace(tmp_path / "out", OLD)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(FileError, match="another one at work"):
            replace(folder, NEW)
        assert texts(folder) == OLD
    finally:
        os.close(handle)
    assert texts(replace(folder, NEW)) == expected(NEW)


def test_files_keep_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = replace(tmp_path / "out", NEW)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in folder.rglob("*") if file.is_file()} == {0o640}
    assert json.loads((folder / MANIFEST).read_text())["files"] == sorted(NEW)
