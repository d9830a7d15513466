"""Every relative link and every path that a page names leads somewhere."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

import hccs
from tests.docs.pages import PAGES, ROOT, anchors, inline_code

EVERY_PAGE = [*PAGES, *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("src/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Folders of the checkout that pages name. `...` and <name> stand for something else.
PATH = re.compile(r"(?:src|docs|tests|lab|aie|benchmarks|tools|\.github)/[\w./*<>{},-]*")

# The function and the metadata that an exported ONNX file has.
IN_ONNX_FILES = {"hccs.SoftmaxI16Div", "hccs.longest_row", "hccs.labels"}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue  # another site
            name, _, anchor = target.partition("#")
            file = (ROOT / page).parent / name if name else ROOT / page
            if not file.exists():
                broken.append(f"{page}:{number}: no file {target}")
            elif anchor and anchor not in anchors(file):
                broken.append(f"{page}:{number}: no heading #{anchor} in {name or page}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_the_text_exist(page):
    missing = [
        f"{place}: no {path}"
        for place, code in inline_code(page)
        for path in PATH.findall(code)
        if not any(mark in path for mark in ("...", "<", "*", "{"))
        and not any((folder / path).exists() for folder in (ROOT, (ROOT / page).parent))
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_package_in_the_text_exist(page):
    missing = []
    for place, code in inline_code(page):
        for dotted in re.findall(r"(?<![\w.])hccs((?:\.[A-Za-z_]\w*)+)", code):
            if f"hccs{dotted}" not in IN_ONNX_FILES and not _exists(dotted[1:].split(".")):
                missing.append(f"{place}: no hccs{dotted}")
    assert not missing, "\n".join(missing)


def _exists(parts: list[str]) -> bool:
    """Whether `hccs` has this attribute of an attribute, or a module of that name."""
    found: object = hccs
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return False
            try:
                found = importlib.import_module(f"{found.__name__}.{part}")
            except ModuleNotFoundError:
                return False
    return True
