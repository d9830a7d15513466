"""A folder as the pages assume it, with a finished run; made once."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs.nn
from hccs.cli.app import app
from hccs_lab.compare import steps
from tests.docs.preamble import write_files


@pytest.fixture(scope="session")
def hccs_command() -> Callable[..., str]:
    """Runs `hccs ARGUMENTS` here, in this process, and returns what it printed."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, f"hccs {' '.join(arguments)}: {result.output}"
        return result.output

    return run


BRIEF = partial(hccs.nn.refine, steps=6)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages run as written, but for how long is refined and timed where a page does not say."""
    monkeypatch.setattr(hccs.nn, "refine", BRIEF)
    monkeypatch.setattr(steps, "SECONDS", 0.0)


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory, hccs_command: Callable[..., str]) -> Path:
    """What `tests/docs/preamble.py` describes, and `RUN`, as the README's command makes it.

    Processes of the suite share it: the first one that needs it makes it.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, finished = root / "pages", root / "pages.finished"
    with open(root / "pages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_files(folder)
            with pytest.MonkeyPatch.context() as patched:
                patched.chdir(folder)
                patched.setattr(hccs.nn, "refine", BRIEF)
                hccs_command("convert", "MODEL", "--task", "sst2", "--data", "DATA", "--out", "RUN")
            finished.touch()
    return folder


@pytest.fixture
def page_folder(prepared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it to work in."""
    folder = shutil.copytree(prepared_folder, tmp_path / "page")
    monkeypatch.chdir(folder)
    yield folder
