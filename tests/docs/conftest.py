"""A folder as the pages assume it, with a finished run; made once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from typer.testing import CliRunner

from hccs.cli.app import app
from tests.docs.preamble import write_files


@pytest.fixture(scope="session")
def hccs_command() -> Callable[..., str]:
    """Runs `hccs ARGUMENTS` here, in this process, and returns what it printed."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, f"hccs {' '.join(arguments)}: {result.output}"
        return result.output

    return run


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory, hccs_command: Callable[..., str]) -> Path:
    """What `tests/docs/preamble.py` describes, and `RUN`, as the README's command makes it."""
    folder = tmp_path_factory.mktemp("pages")
    write_files(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        hccs_command("convert", "MODEL", "--task", "sst2", "--data", "DATA", "--out", "RUN")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def page_folder(prepared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it to work in."""
    folder = shutil.copytree(prepared_folder, tmp_path / "page")
    monkeypatch.chdir(folder)
    yield folder
