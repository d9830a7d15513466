"""NEON, under an emulator: the kernel is cross-compiled and replays cases recorded from the reference."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import logits

import hccs
from hccs import reference

ROOT = Path(__file__).parents[2]
CPU = ROOT / "src/hccs/kernels/cpu"
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")

pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR),
    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64 (g++-aarch64-linux-gnu, qemu-user)",
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    program = tmp_path_factory.mktemp("neon") / "replay"
    sources = [
        ROOT / "tests/native/replay.cpp",
        *(CPU / f"{name}.cpp" for name in ("dispatch", "logits_scalar", "softmax_scalar", "softmax_neon")),
    ]
    subprocess.run(
        [COMPILER, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-static",
         "-DHCCS_NEON", f"-I{CPU}",
         *sources, "-pthread", "-o", program],
        check=True,
    )  # fmt: skip
    return program


def record(file, x, theta, mode, valid):
    """One case in the order in which replay.cpp reads it."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2]
    modes = [candidate.value for candidate in hccs.Mode]
    masking, selection = 0, np.zeros((0,), np.int8)
    if valid is not None:
        masking = 2 if valid.dtype == bool else 1
        selection = valid if valid.dtype == bool else valid.astype(np.int32)
    shared = masking and selection.size == (columns if masking == 2 else 1)
    header = [rows, columns, modes.index(mode), masking, x.shape[0], x.shape[1], 1 if shared else rows]
    file.write(np.array(header, np.int64).tobytes())
    file.write(x.tobytes() + theta.packed.tobytes() + np.arange(x.shape[0], dtype=np.int32).tobytes())
    file.write(selection.tobytes() + reference.softmax(x, theta, mode, valid).tobytes())


@pytest.mark.parametrize("isa", ["neon", "scalar"])
def test_replayed_cases_agree(replay, tmp_path, isa):
    rng, file, cases = np.random.default_rng(0), io.BytesIO(), 0
    for columns, queries, mode in itertools.product(
        [1, 15, 16, 17, 32, 40, 64, 128, 200], [3, 17], hccs.Mode
    ):
        region = hccs.Region(columns)
        D = rng.integers(1, 128, 3)
        S = np.array([rng.integers(0, region.max_slope(int(d)) + 1) for d in D])
        B = rng.integers(S * D + region.floor, region.max_base + 1)
        small = hccs.HeadParams(3, 1, 3)
        thetas = [hccs.HeadParams(B, S, D), hccs.HeadParams([small.B] * 3, [small.S] * 3, [small.D] * 3)]
        x = logits(columns, (3, queries, columns))
        selections = [
            None,
            rng.integers(0, columns + 1, (3, queries)),
            np.array(columns // 2),
            rng.random(x.shape) < 0.6,
            rng.random(columns) < 0.6,
        ]
        for theta, valid in itertools.product(thetas, selections):
            record(file, x, theta, mode.value, valid)
            cases += 1
    recorded = tmp_path / "cases"
    recorded.write_bytes(np.int64(cases).tobytes() + file.getvalue())
    result = subprocess.run([EMULATOR, replay, recorded, isa], capture_output=True, text=True)
    assert result.stdout == f"{cases} cases agree\n", result.stdout + result.stderr
