"""A new user's paths, each by the snippets of one page alone, in an empty folder with the inputs it names."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from tests.docs.pages import PATH_PAGES, ROOT, Fence, fences
from tests.docs.preamble import write_files
from tests.docs.test_commands import commands_in
from tests.docs.test_snippets import run as run_python

PATHS = {
    # page: what it says it starts from, and what must be there at its end
    "docs/start.md": (["MODEL", "mine.csv"], ["RUN/model.hccs", "RUN/model/config.json"]),
    "docs/for_ml_engineers.md": (["MODEL"], ["RUN/model.hccs", "RUN/where.json", "mine.hccs"]),
    "docs/for_microcontrollers.md": (["RUN", "sentences.txt"], ["model_c/hccs_model.c", "answer"]),
    "docs/for_ai_engines.md": (["RUN"], ["project/project.json"]),
    "docs/for_researchers.md": ([], ["heads.png", "OUT/comparison.md", "OUT/comparison.json"]),
    "docs/numpy_only.md": (["RUN/model.hccs"], ["table.hccs.safetensors"]),
}
# What would change the environment or is told for later.
NOT_RUN = ("pip",)


def test_every_path_has_a_page():
    assert set(PATHS) == set(PATH_PAGES)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def give(names: list[str], folder: Path, source: Path) -> None:
    """The inputs that a page names, and nothing else."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy: Callable[..., Any] = shutil.copytree if (source / name).is_dir() else shutil.copy
        copy(source / name, folder / name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PATHS if page != "docs/numpy_only.md"])
def test_the_page_alone_leads_to_the_end(page, empty_folder, tmp_path, request, hccs_command):
    given, made = PATHS[page]
    if "RUN" in given:
        give(given, empty_folder, request.getfixturevalue("prepared_folder"))
    elif given:
        (tmp_path / "given").mkdir()
        write_files(tmp_path / "given")
        give(given, empty_folder, tmp_path / "given")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for fence in fences(page):
        if fence.language == "python":
            run_python(fence, namespace)
        elif fence.language == "c":
            (empty_folder / fence.text.split()[1]).write_text(fence.text)
        elif fence.language == "sh":
            run_commands(fence, hccs_command)
    missing = [name for name in made if not (empty_folder / name).exists()]
    assert not missing, f"{page} ends without {missing}"


def run_commands(fence: Fence, hccs_command: Callable[..., str]) -> None:
    """Every command of a fence, `hccs` in this process; a failure names the line."""
    for offset, line in enumerate(fence.text.splitlines()):
        for command in commands_in(line):
            place = f"{fence.page}:{fence.line + offset}: {' '.join(command)}"
            if command[0] == "hccs":
                try:
                    hccs_command(*command[1:])
                except Exception as error:
                    raise AssertionError(f"{place}: {error}") from error
            elif command[0] not in NOT_RUN:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"


BLOCKED = ("torch", "transformers", "typer", "rich", "matplotlib", "safetensors", "onnx")
ALONE = """
import doctest, sys
sys.modules.update(dict.fromkeys(sys.argv[2].split(","), None))  # imports of these fail
failed, tried = doctest.testfile(sys.argv[1], module_relative=False)
assert tried and not failed
foreign = [name for name in sys.modules if name.split(".")[0] in sys.argv[2].split(",") and sys.modules[name]]
assert not foreign, foreign
"""


def test_numpy_is_enough_where_the_page_says_so(empty_folder, tmp_path, prepared_folder):
    give(PATHS["docs/numpy_only.md"][0], empty_folder, prepared_folder)
    text = "".join(fence.text for fence in fences("docs/numpy_only.md") if fence.language == "python")
    assert doctest.DocTestParser().get_examples(text)
    (tmp_path / "examples.txt").write_text(text)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "examples.txt"), ",".join(BLOCKED)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (empty_folder / PATHS["docs/numpy_only.md"][1][0]).exists()
