"""The row kernels with their machine instructions rather than the plain spelling of them."""

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

import hccs
from hccs.backends.triton import full_rows, softmax
from hccs.reference.softmax import softmax as reference_softmax
from tests.backends.triton_interpreter.machine_instructions import inline_assembly
from tests.backends.triton_interpreter.machine_instructions import run as executed
from tests.backends.triton_interpreter.test_rows import MODES, THETA, WIDE, rows, run

BYTES = hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3])
SUMS_FROM_256 = hccs.HeadParams([1023, 940], [4, 3], [50, 73], [40, 23], [20, 31], 2)
LOW = hccs.HeadParams([3, 2], [0, 1], [50, 1], [0, 0], [20, 1], [1, 1])
THETAS = {"narrow": THETA, "bytes": BYTES, "sums from 256": SUMS_FROM_256, "few": LOW, **WIDE}


@pytest.fixture
def instructions(monkeypatch):
    create = inline_assembly(lambda data, kind: interpreter.TensorHandle(data, tl.int32))
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", create)
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
