"""docs/architectures.md is what the code does: a tiny random model of every architecture is converted."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("architectures", ROOT / "tools" / "architectures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["architectures"] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    module.hf.logging.set_verbosity_error()
    module.hf.logging.disable_progress_bar()
    return module


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_the_code_does(tool):
    """All but what takes a minute: C is not compiled."""
    page = tool.PAGE.read_text(encoding="utf-8")
    found = {architecture: tool.tried(architecture, slow=False) for architecture in tool.ARCHITECTURES}
    assert tool.rendered(found) == page, "run python tools/architectures.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_is_what_the_compiler_does(tool):
    found = {architecture: tool.tried(architecture) for architecture in tool.ARCHITECTURES}
    assert tool.rendered(found) == tool.PAGE.read_text(encoding="utf-8"), "run python tools/architectures.py"


def test_what_does_not_work_has_a_reason(tool):
    page = tool.PAGE.read_text(encoding="utf-8")
    for row in re.findall(r"^\| (.+) \|$", page, re.MULTILINE):
        name, *cells = row.split(" | ")
        assert "no" not in cells or f"- **{name}**, " in page, row
