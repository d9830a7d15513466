"""Pools of processes: they end with the first one, and one that fails or dies ends them all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab.tests.pool_stubs import leave_a_mark

from hccs.errors import HccsError
from hccs_lab.processes import in_processes


def gone(process: int) -> bool:
    """Waits until a process has ended."""
    while True:
        try:
            os.kill(process, 0)
            status = Path(f"/proc/{process}/stat")
            if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_first_one(tmp_path, how):
    first = subprocess.Popen(
        [sys.executable, "-m", "lab.tests.pool_stubs", str(tmp_path), "waits1", "waits2"],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(begun := [p for p in tmp_path.iterdir() if p.read_text()]) < 2:
        time.sleep(0.05)
    children = [int(path.read_text()) for path in begun]
    os.killpg(first.pid, how) if how == signal.SIGINT else first.send_signal(how)  # Ctrl-C reaches the group
    _, said = first.communicate()
    assert first.returncode != 0 and all(gone(child) for child in children)
    assert said.count("Traceback") == (how == signal.SIGINT)  # the first process's KeyboardInterrupt alone


def test_a_failing_or_killed_process_ends_the_pool(tmp_path):
    for bad, message in (("fails", "expected a; got b"), ("dies", "one that was killed.*fewer --jobs")):
        folder = tmp_path / bad
        folder.mkdir()
        with pytest.raises(HccsError, match=message):
            in_processes(leave_a_mark, [(str(folder), "waits"), (str(folder), bad)], 2, "stubs")
        if (folder / "waits").exists():
            assert gone(int((folder / "waits").read_text()))
