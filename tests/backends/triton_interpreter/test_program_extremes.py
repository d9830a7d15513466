"""The kernels of integer programs at the ends of their ranges: the reference's integers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from hccs.backends.triton import program as kernels
from hccs.backends.triton.program.integers import (
    leading_bit,
    quotient,
    root_and_quotient,
    square_root,
)
from hccs.backends.triton.program.linear import keeps_rows
from hccs.errors import HccsError
from hccs.numbers.layers import LinearParams, NormParams, RampParams
from hccs.numbers.rms_norm import RmsParams
from hccs.program import IntegerModel
from hccs.reference import linear as reference
from hccs.reference.layer_norm import layer_norm, rms_norm, root_of, root_shift
from hccs.reference.pooling import pool, unit
from hccs.reference.table import ramp
from tests.program.programs import random_program

MINILM = Path(__file__).parents[3] / "models/minilm-l6/src/hccs_minilm_l6/all-MiniLM-L6-v2.hccs"


def one(count):
    return torch.tensor([count], dtype=torch.int32)


def edges(rng, low, high, shape):
    """Ends of a range, their neighbours, small integers and anything between."""
    ends = np.array([low, low + 1, high - 1, high, -1, 0, 1, 2])
    return np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), rng.integers(low, high + 1, shape))


@pytest.mark.parametrize("epsilon", (1, 2**62 - 1))
@pytest.mark.parametrize("h", (2, 3, 100, 1024))
def test_norms(h, epsilon):
    rng = np.random.default_rng(h)
    x = edges(rng, -(2**16), 2**16, (5, h)).astype(np.int32)
    x[0], x[1], x[2] = 0, 2**16, np.where(np.arange(h) % 2, 2**16, -(2**16))
    gain = edges(rng, 1 - 2**23, 2**23 - 1, h).astype(np.int32)
    bias = edges(rng, -(2**31), 2**31 - 1, h).astype(np.int32)
    for params, expected in (
        (NormParams(gain, bias, 0, epsilon), layer_norm),
        (NormParams(gain, bias, 16, epsilon), layer_norm),
        (RmsParams(gain, 7, epsilon), rms_norm),
    ):
        out = torch.zeros((16, h), dtype=torch.int16)
        given = torch.zeros((16, h), dtype=torch.int32)
        given[:5] = torch.from_numpy(x)
        numbers = epsilon, root_of(h), root_shift(h), params.gain_bits
        constants = kernels.gain_and_bias_on(params, torch.device("cpu"))
        kernels.norm(kernels.Source(a=given), out, kernels.Epilogue(), one(5), 16, *constants, numbers)
        np.testing.assert_array_equal(out[:5].numpy(), expected(x, params))
        assert not out[5:].any()


FEW_ROWS, KEPT_ROWS = (13, 16, 77, 37), (301, 384, 200, 130)
"""Rows, room for rows, inputs and outputs."""


@pytest.mark.parametrize("exponents", (False, True))
@pytest.mark.parametrize("limit", (127, 32767, 2**17, 2**30 - 1))
@pytest.mark.parametrize("small", (False, True))
@pytest.mark.parametrize("shape", [FEW_ROWS, KEPT_ROWS])
def test_linear(shape, small, limit, exponents):
    require_linear(shape, small, limit, exponents)


def require_linear(shape, small, limit, exponents):
    """Small sums and outputs are requantised in float32; rows that have several tiles are kept."""
    rows, room, inputs, outputs = shape
    rng = np.random.default_rng(limit)
    weight = edges(rng, -127, 127, (outputs, inputs)).astype(np.int8)
    weight[0] = 127
    most = 2**22 - 1 if small else 2**31 - 1 - 128 * 127 * inputs
    bias = edges(rng, -most, most, outputs).astype(np.int32)
    multiplier = edges(rng, 128, 2**24 - 1, outputs).clip(128).astype(np.int32)
    params = LinearParams(weight, bias, multiplier, limit, 128)
    x = edges(rng, -128, 127, (rows, inputs + 1)).astype(np.int8)
    x[:, -1] = rng.integers(0, 17, rows)
    x[0, :-1] = 127
    given = torch.zeros((room, inputs // 64 * 64 + 128), dtype=torch.int8)
    given[:rows, : inputs + 1] = torch.from_numpy(x)
    dtype = {127: torch.int8, 32767: torch.int16}.get(limit, torch.int32)
    layer = kernels.layer_on(params, slice(None), None, exponents, torch.device("cpu"))
    depth = layer.weight.shape[1]
    assert keeps_rows(room, outputs, depth, torch.device("cpu")) is (shape == KEPT_ROWS)
    assert layer.small is (small and limit <= 32767)
    out = torch.zeros((room, outputs + 5), dtype=dtype)
    kernels.linear(given, out, one(rows), layer)
    expected = reference.linear_rows(x, params) if exponents else reference.linear(x[:, :-1], params)
    np.testing.assert_array_equal(out[:rows, :outputs].numpy(), expected)
    assert not out[rows:].any() and not out[:, outputs:].any()


@pytest.mark.parametrize("scaled", (False, True))
@pytest.mark.parametrize("bits", (0, 5, 9))
def test_ramps(bits, scaled):
    require_ramp(bits, scaled)


def require_ramp(bits, scaled):
    """All of int16, rows of neighbours; as they are, and narrowed by row with scales or without."""
    rng = np.random.default_rng(bits)
    knot = edges(rng, -(2**13), 2**13, 64)
    slope = edges(rng, -(2**14), 2**14, 64).clip(-(2**14) - knot, 2**14 - knot).clip(-(2**15), 2**15 - 1)
    params = RampParams(knot.clip(0).astype(np.int16), slope.clip(-knot.clip(0)).astype(np.int16), bits)
    x = np.arange(-32767, 32768).reshape(-1, 257).astype(np.int16)
    rows, width = x.shape
    scale = edges(rng, -32768, 32767, width).astype(np.int16) if scaled else None
    given, out = torch.from_numpy(x), torch.zeros((rows, width), dtype=torch.int16)
    narrow = torch.zeros((rows, width + 1), dtype=torch.int8)
    cpu = torch.device("cpu")
    ramped = {"constants": (kernels.pieces_on(params, cpu),), "ramp_bits": bits}
    source = kernels.Source(a=given)
    kernels.rows(source, out, kernels.Epilogue(), one(rows), rows, width, **ramped)
    np.testing.assert_array_equal(out.numpy(), ramp(x, params))
    after = kernels.Epilogue(narrow, kernels.NARROW_ROWS.value, scale=kernels.scale_on(scale, True, cpu))
    kernels.rows(source, None, after, one(rows), rows, width, **ramped)
    np.testing.assert_array_equal(narrow.numpy(), reference.narrow_rows(ramp(x, params), scale))


def test_unit_vectors():
    rng = np.random.default_rng(0)
    for bits, dims in ((8, 1), (16, 5), (32, 384), (32, 4096)):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        x = edges(rng, low, high, (6, dims)).astype(f"int{bits}")
        x[0], x[1], x[2] = 0, low, high
        given = torch.zeros((16, dims), dtype=getattr(torch, f"int{bits}"))
        given[:6] = torch.from_numpy(x)
        out = torch.zeros((16, dims), dtype=torch.int16)
        kernels.unit(given, out, one(6), 16, dims, dims)
        expected = np.stack([unit(row.astype(np.int32)) for row in x])
        np.testing.assert_array_equal(out[:6].numpy(), expected)


@pytest.mark.parametrize("pooling", ("mean", "last", "max"))
@pytest.mark.parametrize("divided", (False, True))
def test_pooling(pooling, divided):
    rng = np.random.default_rng(1)
    lengths, h = [1, 17, 40], 21
    x = edges(rng, -32767, 32767, (sum(lengths), h)).astype(np.int16)
    x[1:18] = -32767
    starts = np.concatenate([[0], np.cumsum(lengths)])
    given = torch.zeros((64, 32), dtype=torch.int16)
    given[: len(x), :h] = torch.from_numpy(x)
    out = torch.zeros((3, 32), dtype=torch.int16 if divided else torch.int32)
    kernels.pool(given, out, torch.tensor(starts, dtype=torch.int32), one(3), h, pooling, divided)
    parts = [x[a:b] for a, b in itertools.pairwise(starts)]
    expected = np.stack([pool(part, pooling, divided=divided) for part in parts])
    np.testing.assert_array_equal(out[:, :h].numpy(), expected)


@triton.jit
def root_and_quotient_of(a_ptr, b_ptr, s_ptr, q_ptr, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    s, q = root_and_quotient(tl.load(a_ptr + place).to(tl.uint64), tl.load(b_ptr + place))
    tl.store(s_ptr + place, s)
    tl.store(q_ptr + place, q)


@pytest.mark.parametrize("off", (-4, 0, 4))  # 2^-23; a GPU's inverse roots of float32 are off by two
def test_roots_and_quotients_by_them(off, monkeypatch):
    builder = interpreter.InterpreterBuilder
    exact = builder.create_rsqrt
    monkeypatch.setattr(
        builder,
        "create_rsqrt",
        lambda self, a: interpreter.TensorHandle(
            exact(self, a).data * np.float32(1 + off * 2.0**-23), a.dtype.scalar
        ),
    )
    rng = np.random.default_rng(0)
    roots = np.concatenate([[2**31, 2**31 + 1, 2**32 - 1], rng.integers(2**31, 2**32, 1021)])
    squares = [int(root) ** 2 for root in roots]
    a = [square + int(rng.choice([0, 1, 2 * int(root)])) for square, root in zip(squares, roots, strict=True)]
    b = [root_of(int(h)) for h in rng.integers(2, 1025, 512)]
    b += [
        int(q) * int(root) + int(rng.integers(-1, 2)) for q, root in zip([2**29] * 512, roots, strict=False)
    ]
    given = torch.from_numpy(np.array(a, np.uint64).view(np.int64)), torch.tensor(b)
    s, q = torch.zeros(1024, dtype=torch.int64), torch.zeros(1024, dtype=torch.int64)
    root_and_quotient_of[(1,)](*given, s, q, COUNT=1024)
    assert s.tolist() == [math.isqrt(v) for v in a]
    assert q.tolist() == [v // math.isqrt(w) for v, w in zip(b, a, strict=True)]


@triton.jit
def quotient_of(a_ptr, b_ptr, q_ptr, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(q_ptr + place, quotient(tl.load(a_ptr + place), tl.load(b_ptr + place)))


@pytest.mark.parametrize("off", (-4, 0, 4))  # 2^-23; a GPU's quotients of float32 are off by two
def test_quotients(off, monkeypatch):
    builder = interpreter.InterpreterBuilder
    exact = builder.create_fdiv

    def nearly(self, a, b):
        found = exact(self, a, b)
        return interpreter.TensorHandle(found.data * np.float32(1 + off * 2.0**-23), found.dtype.scalar)

    monkeypatch.setattr(builder, "create_fdiv", nearly)
    rng = np.random.default_rng(0)
    b = [2**k + d for k in range(1, 24) for d in (-1, 0, 1)] + [2**24 - 1]
    b = np.array([*b, *rng.integers(1, 2**24, 512 - len(b))])
    largest = (2**24 - 1) << (np.frexp(b)[1].astype(np.int64) - 1)  # as multipliers are divided by sums
    quotients = rng.integers(0, largest // b + 1)
    a = np.stack([largest, quotients * b, np.maximum(quotients * b - 1, 0), rng.integers(0, largest)])
    found = torch.zeros(2048, dtype=torch.int32)
    given = torch.from_numpy(a.astype(np.float64).ravel()), torch.from_numpy(np.tile(b, 4).astype(np.int32))
    quotient_of[(1,)](*given, found, COUNT=2048)
    np.testing.assert_array_equal(found.numpy(), (a // b).ravel())


@triton.jit
def roots_and_bits(x_ptr, root_ptr, bit_ptr, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    x = tl.load(x_ptr + place)
    tl.store(root_ptr + place, square_root(x.to(tl.uint64)).to(tl.int64))
    tl.store(bit_ptr + place, leading_bit(x))


def test_square_roots_and_leading_bits():
    powers = [2**k + d for k in range(1, 63) for d in (-1, 0, 1)]
    squares = [(2**k + d) ** 2 + e for k in range(2, 32) for d in (-1, 0) for e in (-1, 0, 1)]
    values = [v for v in (*powers, *squares, 2**63 - 1) if 1 <= v < 2**63]
    values += [1] * (512 - len(values))
    x = torch.tensor(values, dtype=torch.int64)
    root, bit = torch.zeros_like(x), torch.zeros_like(x)
    roots_and_bits[(1,)](x, root, bit, COUNT=512)
    assert root.tolist() == [math.isqrt(v) for v in values]
    assert bit.tolist() == [v.bit_length() - 1 for v in values]


@pytest.mark.skipif(not MINILM.exists(), reason="the shipped model is not here")
def test_the_shipped_encoder():
    on_cpu = IntegerModel.load(MINILM)
    model = IntegerModel(on_cpu.program, device="cuda")
    ids = np.random.default_rng(0).integers(0, on_cpu.program.embed.vocabulary, (3, 9))
    mask = np.arange(9) < np.array([[9], [1], [5]])
    np.testing.assert_array_equal(model(ids, mask).scores, on_cpu(ids, mask).scores)
    short = model.shortened(100)(ids, mask).scores
    np.testing.assert_array_equal(short, on_cpu.shortened(100)(ids, mask).scores)


def test_refusals():
    model = IntegerModel(random_program(0), device="cuda")
    for ids, mask in (
        (torch.full((2, 3), 10**6), None),
        (torch.zeros((2, 3)), None),
        (torch.zeros((2, 1000), dtype=torch.int64), None),
        (torch.zeros((2, 3), dtype=torch.int64), torch.tensor([[1, 0, 1], [1, 1, 1]])),
    ):
        with pytest.raises(HccsError):
            model(ids, mask)
