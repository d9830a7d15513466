"""What runs elsewhere is as true as what runs here: workflows, hooks, the citation, the build of wheels."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import hccs

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted(path.name for path in (ROOT / ".github" / "workflows").glob("*.y*ml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def read(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))


def served_pythons() -> list[str]:
    """The versions that the classifiers name, from what `requires-python` says on."""
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert f'requires-python = ">={versions[0]}"' in PYPROJECT
    return versions


def test_there_are_workflows_for_tests_wheels_and_pages():
    assert WORKFLOWS == ["docs.yml", "tests.yml", "wheels.yml"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_what_a_workflow_needs(name):
    workflow = read(f".github/workflows/{name}")
    # YAML takes the key `on` for a boolean.
    assert {"name", True, "permissions", "jobs"} <= set(workflow)
    for job in workflow["jobs"].values():
        assert "runs-on" in job
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "uses" not in step or re.fullmatch(r"[\w.-]+/[\w./-]+@[\w./-]+", step["uses"]), step


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_call_targets_that_exist(name):
    steps = [step for job in read(f".github/workflows/{name}")["jobs"].values() for step in job["steps"]]
    called = {target for step in steps for target in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}
    assert called <= targets()


def test_the_tests_run_on_every_python_that_is_served():
    job = read(".github/workflows/tests.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == served_pythons()
    assert "make test" in [step.get("run") for step in job["steps"]]
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in served_pythons()


def test_wheels_are_built_for_every_python_that_is_served():
    built = re.search(r'^build = "(.+)"$', PYPROJECT, re.MULTILINE)
    assert built[1].split() == [f"cp{version.replace('.', '')}-*" for version in served_pythons()]
    systems = [
        row["system"]
        for row in read(".github/workflows/wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    ]
    assert systems == ["linux-x86_64", "linux-aarch64", "macos-arm64", "macos-x86_64"]
    command = re.search(
        r'^test-command = "python \{project\}/(\S+) \{project\}/(\S+)"$', PYPROJECT, re.MULTILINE
    )
    assert all((ROOT / file).is_file() for file in command.groups())


def test_hooks_run_what_lint_runs():
    hooks = [hook for repository in read(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert [repository["repo"] for repository in read(".pre-commit-config.yaml")["repos"]] == ["local"]
    tools = {" ".join(hook["entry"].removeprefix(".venv/bin/").split()[:2]) for hook in hooks}
    assert tools == {"ruff check", "ruff format", "clang-format -i", "mypy"}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    assert all(tool.removesuffix(" -i") in lint for tool in tools)
    for hook in hooks:
        assert hook["language"] == "system"
        pattern = re.compile(hook["files"])
        files = listing()
        assert any(pattern.search(file) for file in files), hook["id"]


def listing() -> list[str]:
    folders = ("src", "tests", "benchmarks", "tools")
    return [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.*")]


def test_formatters_and_the_type_checker_are_pinned():
    for tool in ("ruff", "clang-format", "mypy"):
        assert re.search(rf'"{tool}==[\d.]+"', PYPROJECT), tool


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert str(citation["version"]) == hccs.__version__
    assert citation["license"] == "Apache-2.0"
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Danopoulos",
        "Lupi",
        "Kagan",
        "Pierini",
    ]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
