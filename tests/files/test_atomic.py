"""Files appear whole or not at all, on any disk and through any name."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import hccs
from hccs._files.atomic import TEMPORARY, replace, replacing, replacing_folder, require_writable
from hccs.errors import FileError


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        replace(tmp_path / "new", b"x")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == mode


def test_a_folder_is_the_old_one_until_the_new_one_is_whole(tmp_path):
    target, left_over = tmp_path / "model", tmp_path / f".model{TEMPORARY}"
    target.mkdir()
    (target / "old").write_text("old")
    left_over.mkdir()
    (left_over / "half").write_text("of a process that was killed")
    with pytest.raises(KeyboardInterrupt), replacing_folder(target) as fresh:
        fresh.mkdir()
        (fresh / "new").write_text("half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]
    with pytest.raises(FileError, match="model to be writable"), replacing_folder(target):
        raise OSError(28, "No space left on device")
    with replacing_folder(target) as fresh:
        fresh.mkdir()
        (fresh / "new").write_text("new")
        assert (target / "old").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_an_old_file_keeps_its_mode(tmp_path):
    (tmp_path / "old").write_bytes(b"x")
    (tmp_path / "old").chmod(0o640)
    replace(tmp_path / "old", b"y")
    assert mode_of(tmp_path / "old") == 0o640
    assert (tmp_path / "old").read_bytes() == b"y"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(Path("there") / "file")
    replace(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to("later")
    replace(dangling, b"made")
    assert dangling.is_symlink() and (tmp_path / "later").read_bytes() == b"made"


def test_an_interrupted_block_leaves_the_old_file_and_nothing_else(tmp_path):
    replace(tmp_path / "f", b"old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "f") as file:
        file.write(b"half")
        assert [p.name for p in tmp_path.iterdir() if p.name.endswith(TEMPORARY)]
        raise KeyboardInterrupt
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"old")]


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append(os.fstat(handle).st_size), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), rename(*names)))
    replace(tmp_path / "f", b"12345")
    assert order[:2] == [5, "rename"] and len(order) == 3  # and the folder at last


def unwritable(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    yield tmp_path / "folder", "Is a directory. Name a file"
    yield tmp_path / "absent" / "f", "No such file or directory. Create the folder"
    yield tmp_path / "file" / "f", "Not a directory"
    yield tmp_path / ("n" * 300), "File name too long"
    os.mkfifo(tmp_path / "pipe")
    yield tmp_path / "pipe", "A device or a pipe"


def test_targets_that_cannot_be_written_are_refused_in_one_line(tmp_path):
    for path, says in unwritable(tmp_path):
        for attempt in (lambda: replace(path, b"x"), lambda: require_writable(path)):  # noqa: B023
            with pytest.raises(FileError, match=f"to be writable; got {says}") as caught:
                attempt()
            assert "\n" not in str(caught.value)


def test_asking_changes_nothing(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    os.utime(tmp_path / "f", ns=(1, 1))
    require_writable(tmp_path / "f")
    require_writable(tmp_path / "new")
    assert [(p.name, p.stat().st_mtime_ns) for p in tmp_path.iterdir()] == [("f", 1)]


def test_a_disk_that_fills_up_is_one_line_and_leaves_the_old_file(tmp_path):
    table = hccs.ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    table.save(tmp_path / "t")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # no file may grow beyond: writing fails
    try:
        with pytest.raises(FileError, match=r"to be writable; got File too large"):
            table.save(tmp_path / "t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
    assert hccs.ParamTable.load(tmp_path / "t") == table


def test_a_folder_without_permission_is_one_line():
    code = """
import os, sys
from hccs._files.atomic import require_writable
from hccs.errors import FileError
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere
try:
    require_writable(sys.argv[1])
except FileError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        found = subprocess.run(
            [sys.executable, "-c", code, f"{name}/f"], capture_output=True, text=True, check=True
        )
    assert "to be writable; got Permission denied. Check its permissions" in found.stdout
