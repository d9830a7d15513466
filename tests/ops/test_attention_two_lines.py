"""Attention of two lines and of wide sums: every kernel returns the reference's integers."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import hccs
from hccs.backends.cpu import _native, codes
from hccs.reference.attention import attention as slow_reference
from tests.conftest import recalled, with_amx_model
from tests.ops.test_attention import MODES, SHAPES, arrays, assert_same, scales
from tests.ops.test_two_lines import drawn_theta

reference_attention = recalled(slow_reference)

pytestmark = [pytest.mark.usefixtures("instruction_set"), with_amx_model]

FORMS = {
    "uint8 scores": hccs.HeadParams([1023, 250], [3, 1], [53, 100], [39, 1], [21, 90], [2, 0]),
    "int16 scores": hccs.HeadParams([2047, 1023], [5, 4], [54, 127], [77, 20], [22, 1]),
    "one line, wide sums": hccs.HeadParams([3000, 20], [20, 3], [127, 6], wide=True),
    "highest scores": hccs.HeadParams([32767, 32767], [127, 0], [127, 127], [127, 127], [127, 127]),
    "shifts": hccs.HeadParams([32767, 511], [0, 3], [9, 120], [127, 0], [9, 1], [7, 1]),
}


OUTPUTS = ("pair", "float32", "int8")


def expected_of(arguments, options):
    """The reference's answers: the slowest part of a test, found once for all instruction sets."""
    return [reference_attention(*arguments, out=out, **options) for out in OUTPUTS]


def require_equal(cases):
    for arguments, options, expected in cases:
        for out, one in zip(OUTPUTS, expected, strict=True):
            found = hccs.attention(*arguments, out=out, **options)
            for a, b in zip(*(x if out == "pair" else (x,) for x in (found, one)), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


@functools.cache
def shaped_cases(shape, form):
    nq, nk, d = shape
    arguments = (*arrays(nk, (2,), nq, nk, d), FORMS[form], scales(d))
    rng = np.random.default_rng(nk)
    each = (
        {},
        {"causal": nq <= nk},
        {"valid": rng.integers(0, nk + 1, (2, nq))},
        {"valid": np.array([max(nk - 3, 0)]), "causal": nq <= nk},
        {"valid": rng.random((2, nq, nk)) < 0.7, "causal": nq <= nk},
        {"valid": np.arange(nk) < nk * 2 // 3, "mode": "u8_div"},
    )
    return [(arguments, options, expected_of(arguments, options)) for options in each]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_around_every_boundary(shape, form):
    if shape[1] > FORMS[form].max_columns:
        pytest.skip("scores too high for such rows")
    require_equal(shaped_cases(shape, form))


@functools.cache
def drawn_cases(seed, mode):
    """Any heads, factors and masks."""
    rng = np.random.default_rng(seed)
    nq, nk, d = int(rng.integers(1, 40)), int(rng.integers(1, 200)), int(rng.integers(1, 80))
    qkv = arrays(seed, (2, 3), nq, nk, d)
    factors = [
        hccs.FixedPoint(int(rng.choice([1, 2**24 - 1, rng.integers(1, 2**24)])), int(rng.integers(1, 48)))
        for _ in range(2)
    ]
    requant = hccs.Requant(factors[0], 0.3, factors[1])
    valid = [
        None,
        rng.random((2, 3, nq, nk)) < 0.5,
        rng.integers(0, nk + 1, (2, 3, nq)),
        rng.integers(0, nk + 1, (2, 1, 1)),
    ][seed % 4]
    options = {"valid": valid, "causal": nq <= nk and seed % 3 == 0, "mode": mode}
    thetas = [drawn_theta(rng, nk, heads) for heads in ((), (3,))]
    return [
        ((*qkv, theta, requant), options, expected_of((*qkv, theta, requant), options)) for theta in thetas
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
def test_any_heads_factors_and_masks(seed, mode):
    require_equal(drawn_cases(seed, mode))


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("factor", [(3, 40), (2**24 - 1, 47), (2**23 + 1, 24), (2**24 - 1, 24)], ids=str)
def test_the_largest_sums(factor, value):
    """Z just below 2^24 and |N| just below 2^31, in every output."""
    requant = hccs.Requant(hccs.FixedPoint(1, 1), v_scale=1.0, output=hccs.FixedPoint(*factor))
    q = np.zeros((1, 1, 3, 4), np.int8)
    k, v = np.zeros((1, 1, 512, 4), np.int8), np.full((1, 1, 512, 4), value, np.int8)
    for theta in (hccs.HeadParams(32767, 0, 1, wide=True), hccs.HeadParams(32767, 0, 1, 1, 1)):
        products, sums = hccs.attention(q, k, v, theta, requant, out="pair")
        assert (products == value * 512 * 32767).all() and (sums == 512 * 32767).all()
        assert_same(q, k, v, theta, requant)


def test_int8_outputs_around_every_half():
    """N * R just below, at and above the halves between outputs, for sums beyond what floats hold."""
    rng = np.random.default_rng(1)
    q, k = np.zeros((40, 1, 1, 1), np.int8), np.zeros((40, 1, 500, 1), np.int8)
    v = rng.integers(-3, 4, (40, 1, 500, 64)).astype(np.int8)
    for score in (2, 255, 300, 2100, 8200, 32767):
        theta = hccs.HeadParams(score, 0, 1, 1, 1)
        for shift in (20, 21, 24):
            requant = hccs.Requant(hccs.FixedPoint(1, 1), 1.0, hccs.FixedPoint(2**24 - 3, shift))
            q1, k1 = (np.broadcast_to(x, (*x.shape[:-1], 64)) for x in (q, k))
            assert_same(q1, k1, v, theta, requant, outs=("int8",))


def test_threads_and_strides_change_nothing():
    projected = np.random.default_rng(3).integers(-128, 128, (2, 70, 3, 2, 16)).astype(np.int8)
    q, k, v = (projected[:, :, i].swapaxes(1, 2) for i in range(3))
    for theta in FORMS.values():
        assert_same(q, k, v, theta, scales(16))
        expected = hccs.attention(q, k, v, theta, scales(16), threads=1)
        for threads in (2, 5):
            found = hccs.attention(q, k, v, theta, scales(16), threads=threads)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
def test_heads_are_written_side_by_side_and_turned(form):
    nq, nk, d = 33, 40, 20
    q, k, v = arrays(nq, (3, 2), nq, nk, d)
    theta = FORMS[form]
    expected = reference_attention(q, k, v, theta, scales(d), out="int8")
    rows = np.full((3, nq, 2 * d + 3), 0x55, np.uint8)
    written = rows[..., 1 : 2 * d + 1].reshape(3, nq, 2, d).swapaxes(1, 2)
    status = _native.attention(
        q, k, v, theta.packed, scales(d).packed, codes.MASKING[0], None, False,
        codes.DEFERRED, codes.OUTPUTS["int8"], written, None, 1,
    )  # fmt: skip
    assert status == codes.DONE
    np.testing.assert_array_equal(written, expected.view(np.uint8) ^ np.uint8(0x80))
    rows[..., 1 : 2 * d + 1] = 0x55
    assert (rows == 0x55).all()


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_keys_are_zero(mode):
    q, k, v = arrays(1, (2,), 5, 9, 6)
    for theta in FORMS.values():
        assert_same(q, k, v, theta, scales(6), valid=np.zeros((5, 9), bool), mode=mode)
        none = np.zeros((2, 0, 6), np.int8)
        assert_same(q, none, none, theta, scales(6), mode=mode)
