"""The public operators are typed: arrays give arrays, tensors tensors."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
api = pytest.importorskip("mypy.api")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np, torch, hccs
from hccs.ops.quantise import quantise
from numpy.typing import NDArray
from typing import Any
from typing_extensions import assert_type

x, t = np.zeros((2, 4), np.int8), torch.zeros(2, 4, dtype=torch.int8)
theta = hccs.HeadParams(1, 0, 1)
assert_type(hccs.softmax(x, theta), NDArray[Any])
assert_type(hccs.softmax(t, theta), torch.Tensor)
assert_type(quantise(x, 1.0), NDArray[np.int8])
assert_type(quantise(t, 1.0), torch.Tensor)
hccs.softmax(x, theta, out=t)  # type: ignore[type-var]
"""


def test_calls_are_typed(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    out, err, status = api.run(
        [
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--cache-dir",
            str(ROOT / ".mypy_cache"),
            str(program),
        ]
    )
    assert status == 0, out + err
