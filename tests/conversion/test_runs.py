"""The mechanism under every run, on stub stages: resuming, kills, damage, the lock."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from hccs.conversion.converted import Converted, settings_of
from hccs.conversion.runs import state
from hccs.conversion.runs.folder import HOLDER, LOCK, RunFolder
from hccs.conversion.runs.record import StageRecord
from hccs.errors import FileError

SETTINGS = {"model": "tiny", "seed": 0}


def stubs(folder: RunFolder, calls: list[str]) -> dict:
    """Three stages; each leaves a file that the next one reads."""

    def first() -> dict:
        calls.append("first")
        (folder.path / "first.txt").write_text("1")
        return {"value": 1}

    def second() -> dict:
        calls.append("second")
        return {"value": int((folder.path / "first.txt").read_text()) + 1}

    def third() -> dict:
        calls.append("third")
        return {"value": folder.record.stages["second"]["value"] + 1}

    return {"first": first, "second": second, "third": third}


def run(path: Path, calls: list[str] | None = None, stop_before: str = "") -> dict:
    with RunFolder(path, SETTINGS) as folder:
        for name, work in stubs(folder, [] if calls is None else calls).items():
            if name == stop_before:
                raise KeyboardInterrupt
            folder.stage(name, work)
    return folder.record.stages


WHOLE = {name: {"value": value} for value, name in enumerate(("first", "second", "third"), 1)}


@pytest.mark.parametrize("stage", ["first", "second", "third"])
def test_a_run_goes_on_where_it_was_interrupted(tmp_path, stage):
    before, after = [], []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", before, stage)
    assert run(tmp_path / "run", after) == WHOLE
    assert before + after == ["first", "second", "third"]
    assert run(tmp_path / "run", nothing := []) == WHOLE and nothing == []
    assert set(json.loads((tmp_path / "run" / "results.json").read_text())["seconds"]) == set(WHOLE)
    assert not (tmp_path / "run" / LOCK).exists()


def killed_at(event: int, path: Path) -> bool:
    """Runs the stubs in a process that is killed at its n-th access to a file; whether it was."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(name: str, arguments: tuple) -> None:
            nonlocal seen
            kinds = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock")
            if name in kinds and (name == "fcntl.flock" or str(path) in str(arguments[0])):
                seen += 1
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            run(path)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_run_goes_on_wherever_it_was_killed(tmp_path):
    state()  # loaded before, so that the children only run stages
    event = 1
    while killed_at(event, path := tmp_path / f"run{event}"):
        assert run(path) == WHOLE
        assert sorted(p.name for p in path.iterdir()) == ["first.txt", "results.json", "settings.json"]
        event += 1
    assert event > 12  # the folder, the lock, the settings and four files, each at several moments


@pytest.mark.parametrize(
    "name",
    [".settings.json.ab12_xyz", ".settings.json.0123abcd.partial", ".model.hccs.0123abcd.partial", LOCK],
)
def test_what_a_killed_run_left_is_no_other_file(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("{")
    assert run(tmp_path / "run") == WHOLE
    assert not (tmp_path / "run" / name).exists()


def test_other_files_are_neither_taken_nor_touched(tmp_path):
    for name in ("notes.txt", ".bashrc", ".vimrc.abcdefgh"):
        folder = tmp_path / name / "mine"
        folder.mkdir(parents=True)
        (folder / name).write_text("precious")
        with pytest.raises(FileError, match="a folder of other files"):
            run(folder)
        assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(name, "precious")]
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileError, match="to be a folder to write in"):
        run(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [b"", b'{"stages": {', b"[1, 2]", b"\xff\xfe", b'{"version": 1, "stages": 3}', b"{}", b"[" * 10**5],
)
def test_damaged_results_say_what_to_do(tmp_path, content):
    run(tmp_path / "run")
    (tmp_path / "run" / "results.json").write_bytes(content)
    with pytest.raises(
        FileError,
        match=r"(?s)^expected [^\n]*results.json[^\n]*(Delete that file to repeat|cannot be resumed)",
    ):
        run(tmp_path / "run")
    with pytest.raises(FileError, match=r"results.json"):
        Converted(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    assert run(tmp_path / "run") == WHOLE


def test_damaged_settings_say_what_to_do(tmp_path):
    run(tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text('{"model"')
    with pytest.raises(FileError, match=r"settings.json to be intact JSON.*start over"):
        run(tmp_path / "run")
    with pytest.raises(FileError, match=r"settings.json to be intact JSON"):
        settings_of(tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text('{"version": 1, "model": "tiny"}')
    with pytest.raises(FileError, match=r"settings.json as hccs wrote it; got value has no task"):
        settings_of(tmp_path / "run")
    with pytest.raises(FileError, match="other values of seed"):
        run(tmp_path / "run")
    assert not (tmp_path / "run" / LOCK).exists()


def test_only_a_finished_conversion_is_a_converted_run(tmp_path):
    with pytest.raises(FileError, match="no run"):
        Converted(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    StageRecord(tmp_path / "results.json").stage("retrain", dict)
    with pytest.raises(FileError, match=r"a run that has not finished.*hccs convert first"):
        Converted(tmp_path)


def test_runs_of_another_version_are_refused_by_their_version(tmp_path):
    """Results and settings alike; nothing of the run is read or changed."""
    run(tmp_path / "run")
    for name in ("results.json", "settings.json"):
        path = tmp_path / "run" / name
        intact = path.read_text()
        for version in (0, "1", None):
            path.write_text(json.dumps({**json.loads(intact), "version": version}))
            told = rf"version 1 of .*{name}; got version {version!r}.*another format cannot be resumed"
            with pytest.raises(FileError, match=told):
                run(tmp_path / "run")
        path.write_text(intact)
    assert run(tmp_path / "run") == WHOLE


HOLD = """
import sys, time
from pathlib import Path
from hccs.conversion.runs.folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_run_is_told_who_is_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/hccs", "convert", "a model"])
    with RunFolder(tmp_path / "run", SETTINGS):
        told = rf"process {os.getpid()} on .* since 20..-.*: hccs convert 'a model'\. Wait until"
        with pytest.raises(FileError, match=told):
            run(tmp_path / "run")
        assert (tmp_path / "run" / LOCK).exists() and (tmp_path / "run" / HOLDER).exists()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run"), "--mode", "u8 clb"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    with pytest.raises(FileError, match=f"process {other.pid} on .*--mode 'u8 clb'"):
        run(tmp_path / "run")
    other.kill()  # and with its process the lock is gone, though its file is not
    other.communicate()
    assert (tmp_path / "run" / LOCK).exists()
    assert run(tmp_path / "run") == WHOLE


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked .Operation not supported"):
        assert run(tmp_path / "run") == WHOLE
