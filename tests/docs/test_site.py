"""The site: every page is on it, and no link is lost on the way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_menu():
    (_, *entries) = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = {page for entry in entries for page in entry.values()}
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize(
    ("link", "folder", "expected"),
    [
        ("[a](docs/spec.md#one-row)", "", "[a](spec.md#one-row)"),
        ("![b](docs/results/x.png)", "", "![b](results/x.png)"),
        ("[c](CONTRIBUTING.md)", "", "[c](https://host/who/what/blob/main/CONTRIBUTING.md)"),
        ("[d](../src/hccs/reference)", "docs", "[d](https://host/who/what/blob/main/src/hccs/reference)"),
        ("[e](../README.md)", "docs", "[e](index.md)"),
        ("[f](https://semver.org)", "docs", "[f](https://semver.org)"),
    ],
)
def test_links_lead_where_they_led(site, link, folder, expected, monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host")
    monkeypatch.setenv("GITHUB_REPOSITORY", "who/what")
    assert site.with_links_of_the_site(link, Path(ROOT / folder)) == expected
