"""Kernels with their machine instructions rather than the plain spelling of them."""

import importlib

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

import hccs
from hccs.backends.triton import full_rows, softmax
from hccs.reference.softmax import softmax as reference_softmax
from tests.backends.triton_interpreter.machine_instructions import inline_assembly
from tests.backends.triton_interpreter.machine_instructions import run as executed
from tests.backends.triton_interpreter.test_generation import require_pieces
from tests.backends.triton_interpreter.test_program_extremes import KEPT_ROWS, require_linear, require_ramp
from tests.backends.triton_interpreter.test_programs import require_equal
from tests.backends.triton_interpreter.test_rows import MODES, THETA, WIDE, rows, run
from tests.program.programs import (
    BY_DISTANCE,
    language_model,
    long_program,
    random_batch,
    random_decoder,
    random_embedder,
    random_program,
)

BYTES = hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3])
SUMS_FROM_256 = hccs.HeadParams([1023, 940], [4, 3], [50, 73], [40, 23], [20, 31], 2)
LOW = hccs.HeadParams([3, 2], [0, 1], [50, 1], [0, 0], [20, 1], [1, 1])
THETAS = {"narrow": THETA, "bytes": BYTES, "sums from 256": SUMS_FROM_256, "few": LOW, **WIDE}


@pytest.fixture
def instructions(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", inline_assembly())
    monkeypatch.setattr(softmax, "_TILE", 512)
    monkeypatch.setattr(full_rows, "SPELLED_OUT", tl.constexpr(False))


@pytest.mark.parametrize("k", [32, 512])
@pytest.mark.parametrize("theta", THETAS)
def test_full_rows_equal_the_reference(instructions, theta, k):
    theta = THETAS[theta]
    theta = theta if theta.max_columns >= k else hccs.HeadParams([28, 9], [1, 0], [20, 8])
    x = rows(k, 1, 2, 512 // k, k)
    x[0, 0, 0] = rows(k + 1, k) % 28 + 100
    for mode in MODES:
        assert (run(x, theta, mode).numpy() == reference_softmax(x.numpy(), theta, mode)).all(), mode


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_quotients_of_every_sum(off):
    Z = np.concatenate([np.arange(1, 2**17), np.arange(2**17, 2**24, 61), [2**24 - 1]])
    k = np.floor(np.log2(Z)).astype(np.int64)
    M = -(-(Z << np.maximum(15 - k, 0)) // (1 << np.maximum(k - 15, 0)))
    bits = Z.astype(np.float32).view(np.int32)
    assert (executed(full_rows.QUOTIENT.value, bits, off=off) == (255 << 22) // M).all()


@pytest.fixture
def on_nvidia(instructions, monkeypatch):
    """Kernels of programs as they are there, in instructions."""
    for kernels in ("linear", "attention", "cached_attention", "rows"):
        module = importlib.import_module(f"hccs.backends.triton.program.{kernels}")
        monkeypatch.setattr(module, "capability", lambda _: (9, 0))


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [random_program, random_embedder, random_decoder, language_model])
def test_programs_equal_the_reference(make, seed):
    program = make(seed)
    require_equal(program, random_batch(program, seed, 3))


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize("lines", (1, 2, BY_DISTANCE))
def test_many_keys_equal_the_reference(lines):
    require_pieces(long_program(lines, True, 150), (239, 1, 130))


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize("exponents", (False, True))
@pytest.mark.parametrize("limit", (127, 32767))
def test_kept_rows_equal_the_reference(limit, exponents):
    require_linear(KEPT_ROWS, True, limit, exponents)


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize("scaled", (False, True))
@pytest.mark.parametrize("bits", (0, 5, 9))
def test_ramps_equal_the_reference(bits, scaled):
    require_ramp(bits, scaled)
