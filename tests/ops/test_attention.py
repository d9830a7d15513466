"""The native attention returns the reference's integers, on every instruction set, for every kind of call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccs
from hccs.backends.cpu import _native, codes
from hccs.reference.attention import attention as slow_reference
from tests.conftest import from_four_threads, logits, recalled, triples, with_amx_model

reference_attention = recalled(slow_reference)

MODES = [None, "u8_div", "u8_clb"]
# (nq, nk, d) around every boundary the kernels know: tiles, panels, blocks of 64 and chunks of 256 keys.
SHAPES = [
    (1, 1, 1), (1, 64, 64), (4, 16, 4), (5, 17, 3), (16, 64, 64), (17, 65, 65), (33, 63, 20), (3, 130, 100),
    (19, 257, 64), (2, 515, 16), (7, 40, 200), (1, 3, 1024), (20, 128, 31), (6, 48, 33),
]  # fmt: skip

pytestmark = [pytest.mark.usefixtures("instruction_set"), with_amx_model]


def arrays(seed: int, lead: tuple[int, ...], nq: int, nk: int, d: int) -> list[np.ndarray]:
    return [logits(seed + i, (*lead, n, d), spread=60.0) for i, n in enumerate((nq, nk, nk))]


def scales(d: int) -> hccs.Requant:
    """Logits that use all of int8 without saturating too often, per head of two."""
    return hccs.Requant.from_scales(
        q_scale=0.03,
        k_scale=[0.03, 0.02],
        v_scale=[0.03, 0.5],
        logit_scale=0.08 * d**0.5,
        scaling=1.0,
        out_scale=0.02,
    )


def theta_for(nk: int) -> hccs.HeadParams:
    region = hccs.Region(nk)
    return hccs.HeadParams([region.max_base] * 2, [region.max_slope(100), region.max_slope(40)], [100, 40])


def assert_same(q, k, v, theta, requant, outs=("pair", "float32", "int8"), **options):
    for out in outs:
        expected = reference_attention(q, k, v, theta, requant, out=out, **options)
        found = hccs.attention(q, k, v, theta, requant, out=out, **options)
        for a, b in zip(*(x if out == "pair" else (x,) for x in (found, expected)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_around_every_boundary(shape, mode):
    nq, nk, d = shape
    q, k, v = arrays(nk, (2,), nq, nk, d)
    rng = np.random.default_rng(nk)
    for options in (
        {},
        {"causal": nq <= nk},
        {"valid": rng.integers(0, nk + 1, (2, nq))},
        {"valid": np.array([max(nk - 3, 0)]), "causal": nq <= nk},
        {"valid": rng.random((2, nq, nk)) < 0.7, "causal": nq <= nk},
        {"valid": np.arange(nk) < nk * 2 // 3},
    ):
        assert_same(q, k, v, theta_for(nk), scales(d), mode=mode, **options)


@settings(max_examples=60)
@given(
    data=st.data(),
    nq=st.integers(1, 20),
    nk=st.integers(1, 150),
    d=st.integers(1, 80),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 2**32 - 10),
)
def test_any_heads_factors_and_masks(data, nq, nk, d, mode, seed):
    batch, heads = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    q, k, v = arrays(seed, (batch, heads), nq, nk, d)
    theta = hccs.HeadParams(*np.array([data.draw(triples(nk)) for _ in range(heads)]).T)
    factors = st.builds(
        hccs.FixedPoint,
        st.sampled_from([1, 2**23, 2**24 - 1]) | st.integers(1, 2**24 - 1),
        st.sampled_from([1, 47]) | st.integers(8, 40),
    )
    requant = hccs.Requant(data.draw(factors), data.draw(st.floats(1e-3, 10)), data.draw(factors))
    rng = np.random.default_rng(seed)
    valid = data.draw(
        st.sampled_from(
            [
                None,
                rng.random((batch, heads, nq, nk)) < 0.5,
                rng.random((batch, 1, 1, nk)) < 0.8,
                rng.random((batch, heads, nq, 1)) < 0.5,
                rng.integers(0, nk + 1, (batch, heads, nq)),
                rng.integers(0, nk + 1, (batch, 1, 1)),
            ]
        )
    )
    causal = nq <= nk and data.draw(st.booleans())
    assert_same(q, k, v, theta, requant, valid=valid, causal=causal, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factor", [(1, 1), (2**24 - 1, 1), (2**24 - 1, 47), (1, 47), (2**23, 30)], ids=str)
def test_extreme_values_and_factors(mode, factor):
    requant = hccs.Requant(hccs.FixedPoint(*factor), 1e30, hccs.FixedPoint(*factor))
    theta = hccs.HeadParams(480, 3, 127)
    for d in (7, 1024):
        q, k, v = (np.where(np.arange(n)[:, None] % 3, 127, -128) * np.ones((1, d), int) for n in (5, 67, 67))
        q[1], k[2], v[4] = 0, 1, -1
        for a, b, c in (
            (q, k, v),
            (np.full_like(q, -128), np.full_like(k, -128), v),
            (q, 127 + 0 * k, -128 + 0 * v),
        ):
            assert_same(*(x.astype(np.int8) for x in (a, b, c)), theta, requant, mode=mode)


def test_ties_of_the_requantiser_on_both_sides_of_zero():
    # q.k runs from -600 to 600 and is divided by a power of two: many lie half-way between two logits.
    q, k = np.arange(1, 11, dtype=np.int8)[:, None], np.arange(-60, 61, dtype=np.int8)[:, None]
    theta = hccs.HeadParams(255, 2, 127)
    for shift in (1, 2, 4):
        requant = hccs.Requant(hccs.FixedPoint(1, shift), 1.0, hccs.FixedPoint(3, shift))
        assert_same(q, k, k, theta, requant)


@pytest.mark.parametrize("nk", [1025, 32767])
def test_longest_rows_the_arithmetic_allows(nk):
    theta = hccs.HeadParams(32767 // nk, 0, 1)
    q, k, v = arrays(5, (), 3, nk, 5)
    assert_same(q, k, -128 + 0 * v, theta, hccs.Requant(hccs.FixedPoint(9, 9)), outs=("pair", "float32"))
    big = hccs.HeadParams(31, 1, 31)
    assert_same(*arrays(6, (), 3, 1025, 5), big, hccs.Requant(hccs.FixedPoint(9, 9)), outs=("pair",))


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_keys_are_zero(mode):
    q, k, v = arrays(1, (2,), 5, 9, 6)
    nothing = np.zeros((5, 9), bool)
    assert_same(q, k, v, theta_for(9), scales(6), valid=nothing, mode=mode)
    none = np.zeros((2, 0, 6), np.int8)
    assert_same(q, none, none, hccs.HeadParams(7, 0, 1), scales(6), mode=mode)
    assert hccs.attention(none, k, v, theta_for(9), scales(6), mode=mode).shape == (2, 0, 6)
    assert (
        hccs.attention(
            q[:0], k[:0], v[:0], hccs.HeadParams(7, 0, 1), hccs.Requant(hccs.FixedPoint(1, 1))
        ).size
        == 0
    )


def test_strided_heads_are_taken_as_they_are():
    projected = logits(3, (2, 70, 3, 4, 16))  # [batch, tokens, q/k/v, heads, d], as one projection makes it
    q, k, v = (projected[:, :, i].swapaxes(1, 2) for i in range(3))
    requant = hccs.Requant(hccs.FixedPoint(3, 9), 0.1, hccs.FixedPoint(5, 3))
    theta = hccs.HeadParams([400, 300, 200, 100], 2, 50)
    assert_same(q, k, v, theta, requant)
    assert_same(q[..., ::2], k[..., ::-2], v[:, :, :, 3:11], theta, requant)
    mask = (np.random.default_rng(3).random((2, 1, 1, 140)) < 0.5)[..., ::2]
    assert_same(q, k, v, theta, requant, valid=mask)
    misaligned = np.frombuffer(b"?" + q.tobytes(), np.int8, offset=1).reshape(q.shape)
    assert_same(misaligned, k, v, theta, requant)


def test_threads_change_nothing():
    q, k, v = arrays(7, (3, 2), 90, 65, 24)
    options = {"valid": np.random.default_rng(7).integers(0, 66, (3, 2, 90)), "out": "pair"}
    N, Z = hccs.attention(q, k, v, theta_for(65), scales(24), threads=1, **options)
    for threads in (2, 3, 7, 64):
        again = hccs.attention(q, k, v, theta_for(65), scales(24), threads=threads, **options)
        np.testing.assert_array_equal(again[0], N)
        np.testing.assert_array_equal(again[1], Z)


def test_calls_from_several_python_threads_leave_their_inputs():
    q, k, v = arrays(8, (2,), 64, 64, 64)
    before = [x.copy() for x in (q, k, v)]
    expected = hccs.attention(q, k, v, theta_for(64), scales(64))
    found = from_four_threads(lambda: hccs.attention(q, k, v, theta_for(64), scales(64)))
    assert len(found) == 4
    for result in found:
        np.testing.assert_array_equal(result, expected)
    for a, b in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (16, 64, 64), (17, 65, 65), (33, 40, 20), (64, 64, 32)], ids=str
)
@pytest.mark.parametrize("mode", MODES)
def test_heads_are_written_side_by_side_and_turned(shape, mode):
    """As an executor of whole encoders wants it: rows [tokens, heads * d], ready for the next product."""
    nq, nk, d = shape
    q, k, v = arrays(nq, (3, 2), nq, nk, d)
    expected = reference_attention(q, k, v, theta_for(nk), scales(d), mode=mode, out="int8")
    for dtype, turn in ((np.int8, 0), (np.uint8, 0x80)):
        rows = np.full((3, nq, 2 * d + 3), 0x55, dtype)
        written = rows[..., 1 : 2 * d + 1].reshape(3, nq, 2, d).swapaxes(1, 2)
        assert np.shares_memory(rows, written)
        operation = codes.DEFERRED if mode is None else codes.MODES[hccs.Mode(mode)]
        status = _native.attention(
            q, k, v, theta_for(nk).packed, scales(d).packed, codes.MASKING[0], None, False,
            operation, codes.OUTPUTS["int8"], written, None, 1,
        )  # fmt: skip
        assert status == codes.DONE
        np.testing.assert_array_equal(written.view(np.uint8), expected.view(np.uint8) ^ np.uint8(turn))
        rows[..., 1 : 2 * d + 1] = 0x55
        assert (rows == 0x55).all()  # nothing beside them is touched


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("heads", "shared"), [(4, 2), (6, 3), (3, 3), (2, 1)])
def test_heads_that_share_keys_and_values(heads, shared, wide):
    key_heads = heads // shared
    q = logits(1, (2, heads, 5, 20), spread=60.0)
    k, v = (logits(seed, (2, key_heads, 33, 20), spread=60.0) for seed in (2, 3))
    rng = np.random.default_rng(heads)
    theta = hccs.HeadParams(rng.integers(300, 500, heads), rng.integers(1, 4, heads), 60, wide=wide)
    requant = hccs.Requant.from_scales(
        q_scale=0.03,
        k_scale=0.03,
        v_scale=rng.random(heads) + 0.1,
        logit_scale=0.4,
        scaling=1.0,
        out_scale=0.02,
    )
    repeated = [np.repeat(x, shared, axis=1) for x in (k, v)]
    for mode in MODES:
        for options in ({}, {"causal": True}, {"valid": rng.random((2, 1, 5, 33)) < 0.7}):
            assert_same(q, k, v, theta, requant, mode=mode, **options)
            np.testing.assert_array_equal(
                hccs.attention(q, k, v, theta, requant, mode=mode, **options),
                hccs.attention(q, *repeated, theta, requant, mode=mode, **options),
            )
