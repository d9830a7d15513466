"""docs/paper.md maps the paper to this repository: all it names exists."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, inline_code

PAGE = "docs/paper.md"


def test_files_and_tests_exist():
    named = [code for _, code in inline_code(PAGE) if re.match(r"(src|lab|aie|tests)/", code)]
    assert len(named) > 20
    missing = []
    for code in named:
        path, _, test = code.partition("::")
        file = ROOT / path
        if not file.exists() or (test and f"def {test}(" not in file.read_text(encoding="utf-8")):
            missing.append(code)
    assert not missing, missing


def test_every_equation_table_and_figure_has_its_place():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for number in range(1, 13):
        assert f"| ({number}) |" in page
    for name in ("Algorithm 1", "Table I:", "Table II:", "Table III:", "Fig. 1", "Fig. 2", "Fig. 3"):
        assert name in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[1]
    assert "Taming the Exponential" in readme and "(docs/paper.md)" in readme
