"""The notebooks run from the first cell to the last, and the site shows them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("transformers")

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_every_notebook_runs():
    """In a process of its own: the kernel's channels belong to an event loop."""
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_small_and_plain(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 40_000
    for cell in json.loads(text)["cells"]:
        assert "%reset" not in "".join(cell["source"])  # a reader keeps their variables
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            assert "/tmp/" not in json.dumps(output) and str(ROOT) not in json.dumps(output)
