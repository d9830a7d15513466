"""Every Python snippet runs as written: of the pages, and in the docstrings of every module."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, PATH_PAGES, ROOT, Fence, fences
from tests.docs.preamble import names

LANGUAGES = {"python", "sh", "c", "text", "toml", "yaml"}
PAGES_WITH_PYTHON = [
    page
    for page in PAGES
    if page not in PATH_PAGES and any(fence.language == "python" for fence in fences(page))
]
PACKAGE = ROOT / "src"


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_says_what_it_is(page):
    """What is not called Python or shell would not be tried."""
    unknown = [
        f"{fence.place}: '{fence.language}'" for fence in fences(page) if fence.language not in LANGUAGES
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
def test_python_of_the_pages_runs_as_written(page, page_folder):
    namespace: dict[str, Any] = {"__name__": "__main__", **names()}
    for fence in fences(page):
        if fence.language == "python":
            run(fence, namespace)


def run(fence: Fence, namespace: dict[str, Any]) -> None:
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
        run(Fence("docs/spec.md", 40, "python", text), {})
    assert said in str(failed.value)


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
