"""Every page runs as written, from its first fence to its last: Python, shell commands and C."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from tests.docs.pages import PAGES, ROOT, SITE_PAGES, Fence, fences, prose, shell_lines
from tests.docs.preamble import names, write_files
from tests.docs.test_commands import NOT_RUN, RUN_ELSEWHERE, commands_in

LANGUAGES = {"python", "sh", "c", "text", "toml", "yaml"}
RUNNABLE = {"python", "sh", "c"}
PAGES_TO_RUN = [page for page in PAGES if any(fence.language in RUNNABLE for fence in fences(page))]
# Installed by none of our targets: their commands run where they are there.
CROSS_TOOLS = {"arm-none-eabi-gcc", "qemu-system-arm"}
PROGRAMS = {"cc", *CROSS_TOOLS}
START = "docs/start.md"
WITHOUT_TORCH = "Without PyTorch"
PACKAGE = ROOT / "src"


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_says_what_it_is(page):
    """What is not called Python or shell would not be tried."""
    unknown = [
        f"{fence.place}: '{fence.language}'" for fence in fences(page) if fence.language not in LANGUAGES
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("page", SITE_PAGES)
def test_lists_are_separated_from_the_paragraph_before(page):
    """The site's Markdown would make one paragraph of both."""
    item = re.compile(r"\s*([-*]|\d+\.) ")
    wrong, before = [], ""
    for number, line in prose(page):
        if item.match(line) and before.strip() and not re.match(r"#|\s", before) and not item.match(before):
            wrong.append(f"{page}:{number}: a blank line is missing before: {line[:60]}")
        before = line
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", SITE_PAGES)
def test_code_fits_the_site(page):
    """At 1280 pixels a line of code has room for so many letters."""
    wide = [
        f"{fence.page}:{fence.line + number}"
        for fence in fences(page)
        for number, line in enumerate(fence.text.splitlines())
        if len(line) > 125
    ]
    assert not wide, wide


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PAGES_TO_RUN if page != START])
def test_the_page_runs_in_order(page, page_folder, hccs_command):
    run_page(page, page_folder, hccs_command, {"__name__": "__main__", **names()})


@pytest.mark.filterwarnings("ignore")
def test_the_start_page_needs_only_what_it_names(tmp_path, monkeypatch, hccs_command):
    """In a folder with the model and the file that it names, it leads to a converted model."""
    given, folder = tmp_path / "given", tmp_path / "start"
    given.mkdir()
    folder.mkdir()
    write_files(given)
    shutil.copytree(given / "MODEL", folder / "MODEL")
    shutil.copy(given / "mine.csv", folder)
    monkeypatch.chdir(folder)
    run_page(START, folder, hccs_command, {"__name__": "__main__"})
    assert (folder / "RUN/model.hccs").exists() and (folder / "RUN/model/config.json").exists()
    assert (folder / "table.hccs.safetensors").exists()


def run_page(page: str, folder: Path, hccs_command: Callable[..., str], namespace: dict[str, Any]) -> None:
    for fence in fences(page):
        if fence.language == "python":
            run_python(fence, namespace)
        elif fence.language == "c":
            (folder / fence.text.split()[1]).write_text(fence.text)  # its first line is /* name */
        elif fence.language == "sh":
            run_commands(fence, hccs_command)


def run_commands(fence: Fence, hccs_command: Callable[..., str]) -> None:
    """The commands of a fence, `hccs` in this process; a failure names the line.

    Of other programs `make` in a folder, the compilers and what they made are run.
    """
    for where, line in shell_lines(fence):
        for command in commands_in(line):
            text = " ".join(command)
            place = f"{where}: {text}"
            if command[0] == "hccs":
                if text.startswith(tuple(NOT_RUN)) or text in RUN_ELSEWHERE:
                    continue
                try:
                    hccs_command(*command[1:])
                except Exception as error:
                    raise AssertionError(f"{place}: {error}") from error
            elif command[:2] == ["make", "-C"] or command[0] in PROGRAMS or command[0].startswith("./"):
                if command[0] in CROSS_TOOLS and shutil.which(command[0]) is None:
                    continue
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"


def run_python(fence: Fence, namespace: dict[str, Any]) -> None:
    """Run a fence in the page's namespace; a failure names the page and the line."""
    if ">>>" in fence.text:
        # doctest counts lines from 0.
        example = doctest.DocTestParser().get_doctest(
            fence.text, namespace, fence.place, str(ROOT / fence.page), fence.line - 1
        )
        report: list[str] = []
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(example, out=report.append, clear_globs=False)
        namespace.update(example.globs)
        assert not runner.failures, "".join(report)
        return
    # Compiled with the lines it has on the page, so that a traceback shows them.
    source = "\n" * (fence.line - 1) + fence.text
    try:
        exec(compile(source, str(ROOT / fence.page), "exec"), namespace)
    except Exception as error:
        line = _line_in(fence, error)
        raise AssertionError(f"{fence.page}:{line}: {type(error).__name__}: {error}") from error


def _line_in(fence: Fence, error: Exception) -> int:
    """Where on the page it went wrong."""
    if isinstance(error, SyntaxError):
        return error.lineno or fence.line
    line, frame = fence.line, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(ROOT / fence.page):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nx / 0\n", "docs/spec.md:41: ZeroDivisionError"),
        ("x = 1\nx ==\n", "docs/spec.md:41: SyntaxError"),
        (">>> x = 1\n>>> x\n2\n", 'docs/spec.md", line 41'),
    ],
)
def test_a_wrong_snippet_is_told_by_page_and_line(text, said):
    with pytest.raises(AssertionError) as failed:
        run_python(Fence("docs/spec.md", 40, "python", text), {})
    assert said in str(failed.value)


BLOCKED = ("torch", "transformers", "typer", "rich", "matplotlib", "safetensors", "onnx")
ALONE = """
import doctest, sys
sys.modules.update(dict.fromkeys(sys.argv[2].split(","), None))  # imports of these fail
failed, tried = doctest.testfile(sys.argv[1], module_relative=False)
assert tried and not failed
foreign = [name for name in sys.modules if name.split(".")[0] in sys.argv[2].split(",") and sys.modules[name]]
assert not foreign, foreign
"""


def test_no_torch_is_needed_where_the_page_says_so(page_folder, tmp_path):
    text = "".join(fence.text for fence in fences(START) if fence.section == WITHOUT_TORCH)
    assert len(doctest.DocTestParser().get_examples(text)) > 5
    (tmp_path / "examples.txt").write_text(text)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "examples.txt"), ",".join(BLOCKED)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def documented_modules() -> list[str]:
    """Every module of the package with an example in a docstring."""
    return sorted(
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if _has_example(path)
    )


def _has_example(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if ">>>" not in text:
        return False
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = (ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return any(">>>" in text for text in documented if text)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", documented_modules())
def test_examples_in_docstrings_run_as_written(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert attempted > 0
    assert failed == 0
