"""The project's own promises: rooms import one way, the public face is frozen, the core needs NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hccs
from hccs._extras import require
from hccs.errors import MissingExtraError

ROOT = Path(__file__).parent.parent


def test_rooms_import_one_way():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", "pyproject.toml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_public_face():
    assert sorted(hccs.__all__) == [
        "FixedPoint",
        "HccsError",
        "HeadParams",
        "IntegerModel",
        "Mode",
        "ParamTable",
        "Region",
        "Requant",
        "attention",
        "calibrate",
        "softmax",
    ]


def test_core_needs_numpy_alone():
    program = (
        "import sys, hccs, numpy; "
        "foreign = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names); "
        "print(sorted(name for name in foreign if not name.startswith('_')))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch" not in result.stdout
    for name in ("typer", "rich", "matplotlib", "safetensors"):
        assert f"'{name}'" not in result.stdout


def test_missing_extras_tell_both_ways_to_install_them():
    """The package may come from an index or from a checkout; the words for it are kept in one place."""
    with pytest.raises(MissingExtraError) as refused:
        require("a_package_that_nobody_has", "hf")
    assert "pip install 'hccs[hf]'" in str(refused.value)
    assert "pip install '.[hf]'" in str(refused.value)
    package = ROOT / "src" / "hccs"
    spelled = [path.name for path in package.rglob("*.py") if "pip install 'hccs[" in path.read_text("utf-8")]
    assert spelled == ["_extras.py"]


def test_the_demo_installs_what_the_extras_ask_for():
    """The Makefile installs a part of two extras; their bounds are the same in both places."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (line,) = (
        line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if line.startswith("DEMO :=")
    )
    wanted = line.partition(":=")[2].split()
    assert wanted and all(requirement in project for requirement in wanted)
