"""The emulated AIE API: each operation against plain C++, under every compiler at hand."""

from __future__ import annotations

import doctest
import importlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hccs.aie import emulator
from hccs.aie.export.project import emulation_sources, kernel_sources
from hccs.errors import ShapeError


def build_and_run(
    compiler: str, source: str, flags: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    for name, text in {**kernel_sources(), **emulation_sources()}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    program = folder / "check"
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", *flags, f"-I{folder}"]
    subprocess.run([*command, str(Path(__file__).with_name(source)), "-o", str(program)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_operations_equal_plain_cpp(compiler: str, tmp_path: Path) -> None:
    done = build_and_run(compiler, "operations_check.cpp", [], tmp_path)
    assert done.returncode == 0, done.stdout


CHESS = [
    "-D__chess__",
    "-Dchess_prepare_for_pipelining=",
    "-Dchess_loop_range(...)=",
    "-Dchess_unroll_loop(x)=",
]


@pytest.mark.parametrize("flags", [["-Wno-unknown-pragmas"], CHESS], ids=["peano", "chess"])
def test_the_device_compilers_hints_change_no_bit(flags: list[str], tmp_path: Path) -> None:
    done = build_and_run("g++", "device_hints_check.cpp", flags, tmp_path)
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


@pytest.mark.parametrize("module", ["emulator", "cycles.machine", "export.vitis"])
def test_examples_in_docstrings_run_as_written(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"hccs.aie.{module}"))
    assert attempted > 0
    assert failed == 0
