"""The emulated AIE API: each operation against plain C++, under every compiler at hand."""

from __future__ import annotations

import doctest
import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hccs.errors import DataError, DtypeError, ShapeError
from hccs_aie import emulator
from hccs_aie.export.project import emulation_sources, kernel_sources


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


SECOND_GENERATION = ["-Wno-unknown-pragmas", "-D__AIE_ARCH__=22"]
"""Where sixteen-bit products have eight columns."""


@pytest.mark.parametrize(
    "flags", [["-Wno-unknown-pragmas"], CHESS, SECOND_GENERATION], ids=["peano", "chess", "second generation"]
)
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


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38])
def test_bf16_refuses_what_it_cannot_hold(value: float) -> None:
    x = np.zeros((2, 16), np.float32)
    x[1, 3] = value
    with pytest.raises(DataError, match="bfloat16"):
        emulator.softmax_bf16(x, native_exp=False)


@pytest.mark.parametrize("native_exp", [False, True])
def test_bf16_takes_all_that_it_holds(native_exp: bool) -> None:
    x = np.full((2, 16), -emulator.BF16_LARGEST)
    x[:, 3] = emulator.BF16_LARGEST
    got = emulator.softmax_bf16(x, native_exp)
    assert got[:, 3].tolist() == [1, 1]
    assert got.sum() == 2


@pytest.mark.parametrize("x", [np.zeros((2, 16), np.int8), np.ma.zeros((2, 16)), [[0.0] * 16]])
def test_bf16_refuses_what_are_no_floats(x: Any) -> None:
    with pytest.raises(DtypeError, match="plain array of floats"):
        emulator.softmax_bf16(x, native_exp=True)


@pytest.mark.parametrize("module", ["emulator", "cycles.machine", "export.write"])
def test_examples_in_docstrings_run_as_written(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"hccs_aie.{module}"))
    assert attempted > 0
    assert failed == 0
