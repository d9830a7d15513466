"""AMX: the model of its tiles, which other tests run the kernels on, and how it is chosen."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hccs.backends.cpu import _native
from hccs.backends.cpu import instruction_sets as isa

ROOT = Path(__file__).parents[2]
COMPILER, DISASSEMBLER = shutil.which("g++"), shutil.which("objdump")


@pytest.fixture(scope="module")
def tile_product(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("needs g++")
    program = tmp_path_factory.mktemp("tiles") / "tile_product"
    folders = [f"-I{ROOT / 'src/hccs/backends/cpu/native'}"]
    source = ROOT / "tests/native/tile_product.cpp"
    subprocess.run([COMPILER, "-std=c++20", "-Wall", "-Werror", *folders, source, "-o", program], check=True)
    return program


def multiply(program, *tiles):
    """The tile of sums after one product, and how the program ended."""
    shapes = np.array([side for tile in tiles for side in tile.shape], np.int64)
    given = shapes.tobytes() + b"".join(tile.tobytes() for tile in tiles)
    done = subprocess.run([program], input=given, capture_output=True)
    return np.frombuffer(done.stdout, np.uint8), done.returncode


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(16, 64, 16), (1, 4, 1), (7, 36, 5), (16, 8, 16), (3, 64, 2)]
)
def test_the_model_multiplies_tiles_of_any_shape(tile_product, rows, inputs, outputs):
    rng = np.random.default_rng(rows)
    left = rng.integers(0, 256, (rows, inputs), dtype=np.uint8)
    weights = rng.integers(-128, 128, (inputs, outputs), dtype=np.int8)
    panel = weights.reshape(inputs // 4, 4, outputs).transpose(0, 2, 1).reshape(inputs // 4, 4 * outputs)
    sums = rng.integers(-(2**31), 2**31, (rows, outputs)).astype(np.int32)  # wraps around
    found, code = multiply(
        tile_product, sums.view(np.uint8), left, np.ascontiguousarray(panel).view(np.uint8)
    )
    assert code == 0
    with np.errstate(over="ignore"):
        expected = sums + (left.astype(np.int32) @ weights.astype(np.int32)).astype(np.int32)
    memory = np.full((16, 64), 255, np.uint8)  # what lies beside the tile is not written
    memory[:rows, : 4 * outputs] = expected.view(np.uint8)
    np.testing.assert_array_equal(found.reshape(16, 64), memory)


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 16), (5, 8), (2, 16)],  # sums and left differ in rows
        [(4, 16), (4, 8), (2, 12)],  # sums and right in columns
        [(4, 16), (4, 8), (3, 16)],  # left and right in depth
        [(4, 16), (4, 6), (2, 16)],  # no whole words
        [(17, 16), (17, 8), (2, 16)],  # more rows than a tile has
        [(4, 68), (4, 8), (2, 68)],  # more bytes
        [(0, 16), (0, 8), (2, 16)],  # no rows
    ],
)
def test_the_model_traps_where_a_processor_would(tile_product, shapes):
    found, code = multiply(tile_product, *(np.zeros(shape, np.uint8) for shape in shapes))
    assert code != 0 and found.size == 0


def test_the_model_is_used_where_named_only():
    assert isa.MODEL not in isa.available() and isa.MODEL not in isa.info().compiled
    assert isa.select("") != isa.MODEL
    program = "import hccs; print(hccs.backends.cpu.info().isa)"
    environment = {**os.environ, "HCCS_ISA": isa.MODEL}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == isa.MODEL, done.stderr


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is of x86-64")
@pytest.mark.skipif(DISASSEMBLER is None, reason="needs objdump")
def test_the_library_has_the_tile_instructions():
    done = subprocess.run([DISASSEMBLER, "-d", _native.__file__], capture_output=True, text=True, check=True)
    for instruction in ("ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored", "tilerelease"):
        assert f"{instruction} " in done.stdout or f"{instruction}\n" in done.stdout
