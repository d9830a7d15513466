"""The emulated AIE API: each operation against plain C++, under every compiler at hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hccs.aie import emulator
from hccs.aie.export.project import emulation_sources, kernel_sources
from hccs.errors import ShapeError


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_operations_equal_plain_cpp(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    for name, text in {**kernel_sources(), **emulation_sources()}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    program = tmp_path / "check"
    source = Path(__file__).with_name("operations_check.cpp")
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, f"-I{tmp_path}", str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("native_exp", [False, True])
@pytest.mark.parametrize("n", [32, 128])
def test_bf16_softmax_is_a_softmax(native_exp: bool, n: int) -> None:
    x = np.random.default_rng(n).normal(0, 3, (16, n)).astype(np.float32)
    got = emulator.softmax_bf16(x, native_exp)
    exact = np.exp(x - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    # BF16 keeps eight bits; log2(e), the exponent's argument and the result are each rounded to it.
    assert np.abs(got - exact).max() < 0.02
    assert np.abs(got.sum(1) - 1).max() < 0.03
    assert (got.argmax(1) == exact.argmax(1)).mean() > 0.9


def test_bf16_refuses_odd_rows() -> None:
    with pytest.raises(ShapeError, match="multiple of 16"):
        emulator.softmax_bf16(np.zeros((2, 20), np.float32), native_exp=True)
