"""The site: every page is on it, and no link is lost on the way."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hccs
from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(entries: list[Any]) -> list[str]:
    """The pages of a menu, sections opened."""
    found = [page for entry in entries for page in entry.values()]
    return [page for part in found for page in (listed(part) if isinstance(part, list) else [part])]


def test_every_page_is_in_the_menu_once():
    menu = listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")]
    others = [
        f"{name}/{path.name}" for name in ("lab", "aie") for path in (ROOT / name / "docs").glob("*.md")
    ]
    assert sorted(menu) == sorted(["index.md", *pages, *notebooks, *others])


def test_every_public_name_is_on_the_page_of_names():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    wanted = {f"hccs.{name}" for name in hccs.__all__}
    for room in ("nn", "calibration"):
        wanted |= {f"hccs.{room}.{name}" for name in importlib.import_module(f"hccs.{room}").__all__}
    assert wanted <= {*shown}
    for name in shown:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_notebooks_become_pages(site):
    """Cells, their outputs as text, and links to other pages of the site."""
    page = site.as_markdown(ROOT / "docs" / "notebooks" / "what_a_head_looks_like.ipynb")
    assert page.startswith("# What a head looks like") and "```python\nimport csv\n" in page
    assert "```text\n" in page
    linked = site.with_links_of_the_site(
        "[a](../calibration.md) [b](x.ipynb)", ROOT / "docs/notebooks", "notebooks"
    )
    assert linked == "[a](../calibration.md) [b](x.md)"


def test_examples_and_parameters_of_docstrings_are_readable():
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "tools" / "docstrings.py")
    docstrings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docstrings)
    text = docstrings.fenced("Adds.\n\n>>> add(\n...     1, 2)\n3\n\nThen more.")
    assert text == "Adds.\n\n\n```pycon\n>>> add(\n...     1, 2)\n3\n```\n\nThen more.\n"


def test_the_figure_of_the_readme_shows_the_results_as_they_are():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "tools" / "figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    assert f"drawn from {figures.digest()}" in figures.FIGURE.read_text(encoding="utf-8"), (
        "run tools/figures.py"
    )
    assert str(figures.FIGURE.relative_to(ROOT)) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "notebooks" / "what_a_head_looks_like" / "index.html").exists()
    assert (tmp_path / "site" / "lab" / "reproduction" / "index.html").exists()
    names = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert 'id="hccs.IntegerModel.__call__"' in names and "&gt;&gt;&gt;" not in re.sub(
        r"<code.*?</code>", "", names, flags=re.S
    )


@pytest.mark.parametrize(
    ("link", "folder", "expected"),
    [
        ("[a](docs/spec.md#one-row)", "", "[a](spec.md#one-row)"),
        ("![b](docs/results/x.png)", "", "![b](results/x.png)"),
        ("[c](CONTRIBUTING.md)", "", "[c](https://host/who/what/blob/main/CONTRIBUTING.md)"),
        ("[d](../src/hccs/reference)", "docs", "[d](https://host/who/what/blob/main/src/hccs/reference)"),
        ("[e](../README.md)", "docs", "[e](index.md)"),
        ("[f](https://semver.org)", "docs", "[f](https://semver.org)"),
        ("[g](../lab/docs/reproduction.md#modes)", "docs", "[g](lab/reproduction.md#modes)"),
    ],
)
def test_links_lead_where_they_led(site, link, folder, expected, monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host")
    monkeypatch.setenv("GITHUB_REPOSITORY", "who/what")
    assert site.with_links_of_the_site(link, Path(ROOT / folder)) == expected
