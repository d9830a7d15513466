"""Few queries over many keys, as in generation: the reference's integers, however the keys are shared out."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs.reference.attention import attention as slow_reference
from tests.conftest import logits, recalled

reference_attention = recalled(slow_reference)

pytestmark = pytest.mark.usefixtures("instruction_set")

FORMS = {
    "one line": lambda nk: hccs.HeadParams([30, 20, 25, 31], [0, 1, 0, 1], 20),
    "wide sums": lambda nk: hccs.HeadParams([444, 300, 32767 // 4, 200], [4, 1, 60, 1], 100, wide=True),
    "int16 scores": lambda nk: hccs.HeadParams(
        [1023, 250, 2047, 900], [4, 0, 3, 1], 50, [41, 3, 90, 20], [20, 40, 19, 33]
    ),
    "uint8 scores": lambda nk: hccs.HeadParams([1023, 1000], [4, 2], 50, [35, 41], 20, 2),
}


def operands(lead, shared, nq, nk, d, seed=0):
    heads = lead[-1]
    q = logits(seed, (*lead, nq, d), spread=60.0)
    k, v = (logits(seed + i, (*lead[:-1], heads // shared, nk, d), spread=60.0) for i in (1, 2))
    return q, k, v


def factors(heads: int, d: int) -> hccs.Requant:
    return hccs.Requant.from_scales(
        q_scale=0.03,
        k_scale=np.linspace(0.02, 0.04, heads),
        v_scale=np.linspace(0.1, 2, heads),
        logit_scale=0.08 * d**0.5,
        scaling=1.0,
        out_scale=0.02,
    )


def assert_reference(q, k, v, theta, requant, threads=(1,), outs=("pair", "float32", "int8"), **options):
    for out in outs:
        expected = reference_attention(q, k, v, theta, requant, out=out, **options)
        for count in threads:
            found = hccs.attention(q, k, v, theta, requant, out=out, threads=count, **options)
            for a, b in zip(*(x if out == "pair" else (x,) for x in (found, expected)), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("mode", [None, "u8_div", "u8_clb", "u8_lin"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_and_mode_on_pieces_of_the_keys(form, mode):
    q, k, v = operands((1, 4), 4, 1, 700, 64)
    theta = FORMS[form](700)
    if theta.shape == (2,):
        theta = hccs.HeadParams.from_packed(np.concatenate([theta.packed, theta.packed]))
    rng = np.random.default_rng(0)
    for options in ({}, {"valid": np.array([401])}, {"valid": rng.random((1, 4, 1, 700)) < 0.6}):
        assert_reference(q, k, v, theta, factors(4, 64), (1, 3), mode=mode, **options)


@pytest.mark.parametrize(
    "shape", [(1, 1, 3, 1), (2, 3, 65, 20), (3, 2, 257, 80), (4, 4, 130, 128), (4, 1, 66, 200)]
)
def test_shapes_around_every_boundary(shape):
    nq, shared, nk, d = shape
    heads = 2 * shared
    q, k, v = operands((2, heads), shared, nq, nk, d, seed=nk)
    theta = hccs.HeadParams(np.full(heads, 2000), 3, 100, wide=True)
    rng = np.random.default_rng(nk)
    for options in (
        {},
        {"causal": nq <= nk},
        {"valid": rng.integers(0, nk + 1, (2, 1, nq))},
        {"valid": rng.random((2, 1, 1, nk)) < 0.5, "causal": nq <= nk},
        {"valid": np.zeros((2, heads, nq, nk), bool)},
    ):
        assert_reference(q, k, v, theta, factors(heads, d), (2,), **options)


def test_heads_of_low_and_of_high_scores_share_keys():
    q, k, v = operands((1, 3), 3, 2, 90, 64)
    theta = hccs.HeadParams([200, 2000, 100], [1, 9, 0], 100, wide=True)
    assert_reference(q, k, v, theta, factors(3, 64), valid=np.array([[[90, 3], [40, 90], [0, 88]]]))


def test_sums_at_the_edge_of_24_bits():
    keys = 512
    q = np.full((1, 1, 1, 64), 127, np.int8)
    k = np.full((1, 1, keys, 64), 127, np.int8)
    v = np.full((1, 1, keys, 64), -128, np.int8)
    theta = hccs.HeadParams(32767, 0, 1, wide=True)
    assert_reference(q, k, v, theta, factors(1, 64), (1, 2))


def test_a_cache_with_room_for_more_is_read_in_place():
    q, k, v = operands((2, 4), 2, 1, 96, 64)
    wanted = [x[:, :, :77].copy() for x in (k, v)]
    theta = FORMS["int16 scores"](77)
    given = hccs.attention(q, k[:, :, :77], v[:, :, :77], theta, factors(4, 64))
    np.testing.assert_array_equal(given, hccs.attention(q, *wanted, theta, factors(4, 64)))
    by_token = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in wanted]
    np.testing.assert_array_equal(given, hccs.attention(q, *by_token, theta, factors(4, 64)))
