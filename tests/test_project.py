"""The project's own promises: what the README says runs, rooms import one way, the public face is frozen."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hccs

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/spec.md", "docs/attention.md", "docs/calibration.md"])
def test_examples_in_pages_run_as_written(page):
    failed, attempted = doctest.testfile(str(ROOT / page), module_relative=False)
    assert attempted > 0
    assert failed == 0


@pytest.mark.parametrize(
    "module",
    [
        "numbers.modes",
        "numbers.region",
        "numbers.heads",
        "numbers.requant",
        "numbers.table",
        "ops.softmax",
        "ops.attention",
        "ops.quantise",
        "backends.cpu.instruction_sets",
        "_progress",
        "calibration.statistics",
        "calibration.searching",
        "calibration.scale",
        "calibration.grid",
        "surrogates.registry",
        "surrogates.costs",
        "surrogates.bfloat16",
    ],
)
def test_examples_in_docstrings_run_as_written(module):
    failed, attempted = doctest.testmod(importlib.import_module(f"hccs.{module}"))
    assert attempted > 0
    assert failed == 0


def test_rooms_import_one_way():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", "pyproject.toml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_public_face():
    assert sorted(hccs.__all__) == [
        "FixedPoint",
        "HccsError",
        "HeadParams",
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
