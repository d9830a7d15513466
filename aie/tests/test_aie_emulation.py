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

from hccs_aie import _emulation
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


BF16_LARGEST = float.fromhex("0x1.fep127")
"""The largest bfloat16."""


def softmax_bf16(x: Any, native_exp: bool) -> Any:
    """The kernel of the BF16 baseline on rows of logits, rounded to BF16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    out = np.empty_like(rounded)
    _emulation.bf16_kernel(native_exp, rounded, out, x.shape[1], False)
    return (out.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("native_exp", [False, True])
@pytest.mark.parametrize("n", [32, 128])
def test_bf16_softmax_is_a_softmax(native_exp: bool, n: int) -> None:
    x = np.random.default_rng(n).normal(0, 3, (16, n)).astype(np.float32)
    got = softmax_bf16(x, native_exp)
    exact = np.exp(x - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    # BF16 keeps eight bits; log2(e), the exponent's argument and the result are each rounded to it.
    assert np.abs(got - exact).max() < 0.02
    assert np.abs(got.sum(1) - 1).max() < 0.03
    assert (got.argmax(1) == exact.argmax(1)).mean() > 0.9


@pytest.mark.parametrize("native_exp", [False, True])
def test_bf16_takes_all_that_it_holds(native_exp: bool) -> None:
    x = np.full((2, 16), -BF16_LARGEST)
    x[:, 3] = BF16_LARGEST
    got = softmax_bf16(x, native_exp)
    assert got[:, 3].tolist() == [1, 1]
    assert got.sum() == 2


@pytest.mark.parametrize("module", ["emulator", "cycles.machine", "export.write"])
def test_examples_in_docstrings_run_as_written(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"hccs_aie.{module}"))
    assert attempted > 0
    assert failed == 0
