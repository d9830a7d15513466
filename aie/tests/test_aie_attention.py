"""Attention on one tile: every bit against the reference, what it refuses, and its modelled schedules."""

from __future__ import annotations

import numpy as np
import pytest
from aie.tests.verifier import violations
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hccs import FixedPoint, HeadParams, Requant
from hccs.errors import DtypeError, HccsError, ParameterError, ShapeError
from hccs.reference.attention import attention as reference
from hccs_aie import attention as tile
from hccs_aie.cli import app
from hccs_aie.cycles.machine import Generation, machine
from hccs_aie.cycles.model import Compiler
from hccs_aie.cycles.program import Loop, Operation, addresses_read_always, split_invariant


def head(rng: np.random.Generator, rows: int, n: int, dim: int, low: int = -128, high: int = 127):
    return [rng.integers(low, high + 1, (size, dim)).astype(np.int8) for size in (rows, n, n)]


def require_equal(q, k, v, theta: HeadParams, requant: Requant) -> None:
    N, Z = tile.attention(q, k, v, theta, requant)
    expected_N, expected_Z = reference(q, k, v, theta, requant, out="pair")
    np.testing.assert_array_equal(N, expected_N)
    np.testing.assert_array_equal(Z, expected_Z)
    three = tile.by_three_kernels(q, k, v, theta, requant)
    np.testing.assert_array_equal(three, reference(q, k, v, theta, requant, mode="u8_clb", out="pair")[0])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_bits_equal_the_reference(data: st.DataObject) -> None:
    n, dim = data.draw(st.sampled_from(range(32, 257, 32))), data.draw(st.sampled_from([32, 64]))
    B = data.draw(st.integers(1, 32767 // n))
    D = data.draw(st.integers(1, 127))
    S = data.draw(st.integers(0, min(127, B // D)))
    requant = Requant(FixedPoint(2 ** data.draw(st.integers(0, 3)), data.draw(st.integers(3, 15))))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    low = data.draw(st.integers(-128, 0))
    q, k, v = head(rng, data.draw(st.integers(1, 70)), n, dim, low, data.draw(st.integers(low, 127)))
    require_equal(q, k, v, HeadParams(B, S, D), requant)


@pytest.mark.parametrize("n", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("dim", tile.HEAD_SIZES)
def test_the_largest_sums_are_exact(n: int, dim: int) -> None:
    most = 32767 // n
    low, high = np.full((2, 33, dim), -128, np.int8), np.full((2, n, dim), 127, np.int8)
    for k in (high, -1 - high):
        for v in (high, -1 - high):
            for D in (1, 127):
                S = min(127, most // D)
                require_equal(
                    low, k, v, HeadParams([most, S * D or 1], [S, S], [D, D]), Requant(FixedPoint(1, 1))
                )


def test_ties_round_up() -> None:
    q, k = np.zeros((8, 32), np.int8), np.zeros((32, 32), np.int8)
    q[:, 0] = 1
    k[:, 0] = np.arange(-16, 16)
    require_equal(q, k, k, HeadParams(200, 9, 20), Requant(FixedPoint(1, 1)))


def test_heads_have_their_own_parameters_and_factors() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.integers(-128, 128, (2, 3, size, 32)).astype(np.int8) for size in (40, 64, 64))
    theta = HeadParams([500, 255, 60], [11, 1, 0], [40, 127, 3])
    require_equal(q, k, v, theta, Requant(FixedPoint([1, 4, 1], [9, 12, 11])))


REFUSED = {
    "dtype": (lambda q, k, v, t, r: (q.astype(np.int16), k, v, t, r), DtypeError, "int8"),
    "keys": (lambda q, k, v, t, r: (q, k[:40], v[:40], t, r), ShapeError, "multiple of 32"),
    "head size": (lambda q, k, v, t, r: (q[:, :16], k[:, :16], v[:, :16], t, r), ShapeError, "zeros"),
    "shapes": (lambda q, k, v, t, r: (q, k, v[:32], t, r), ShapeError, "same heads"),
    "theta": (lambda q, k, v, t, r: (q, k, v, (1, 0, 1), r), DtypeError, "HeadParams"),
    "heads": (
        lambda q, k, v, t, r: (q, k, v, HeadParams([9, 9], [0, 0], [1, 1]), r),
        ShapeError,
        "broadcast",
    ),
    "scores": (
        lambda q, k, v, t, r: (q, k, v, HeadParams(500, 1, 60, 2, 20, wide=True), r),
        ParameterError,
        "scores of at most 255",
    ),
    "slopes": (
        lambda q, k, v, t, r: (q, k, v, HeadParams(1023, 127, 4, 127, 4, f=2), r),
        ParameterError,
        "<= 32767",
    ),
    "sums": (lambda q, k, v, t, r: (q, k, v, HeadParams(600, 1, 9), r), HccsError, "32767"),
    "requant": (lambda q, k, v, t, r: (q, k, v, t, 0.5), DtypeError, "Requant"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    change, error, text = REFUSED[case]
    q, k, v = head(np.random.default_rng(0), 8, 64, 32)
    arguments = change(q, k, v, HeadParams(255, 5, 40), Requant(FixedPoint(1, 8)))
    for call in (tile.attention, tile.by_three_kernels):
        with pytest.raises(error, match=text):
            call(*arguments)


def test_refusals_of_masks_factors_and_outputs() -> None:
    q, k, v = head(np.random.default_rng(0), 96, 64, 32)
    theta, plain, odd = HeadParams(255, 5, 40), Requant(FixedPoint(1, 8)), Requant(FixedPoint(3, 9))
    for text, options in {
        "more queries": {"causal": True},
        "0 to 64": {"lengths": 65},
        "whole lengths": {"lengths": 1.5},
        "'pair' or 'int8'": {"out": "float32"},
        "a factor for int8": {"out": "int8"},
    }.items():
        with pytest.raises(HccsError, match=text):
            tile.attention(q, k, v, theta, plain, **options)
    with pytest.raises(ParameterError, match="power of two"):
        tile.by_three_kernels(q, k, v, theta, odd)
    with pytest.raises(ParameterError, match="one line"):
        tile.by_three_kernels(q, k, v, HeadParams(255, 1, 60, 2, 20), plain)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_masks_two_lines_factors_and_int8_output(data: st.DataObject) -> None:
    n, dim = data.draw(st.sampled_from(range(32, 257, 32))), data.draw(st.sampled_from([32, 64]))
    causal = data.draw(st.booleans())
    rows = data.draw(st.integers(1, min(70, n) if causal else 70))
    if data.draw(st.booleans()):
        f = data.draw(st.integers(0, 5))
        D = data.draw(st.integers(1, 127))
        D2 = data.draw(st.integers(1, D))
        B = data.draw(st.integers(1 << f, min((256 << f) - 1, 16000)))
        S = data.draw(st.integers(0, min(60, B // D)))
        S2 = data.draw(st.integers(0, min(67, (B - S * D) // D2)))
        theta = HeadParams(B, S, D, S2, D2, f, wide=True)
    else:
        B, D = data.draw(st.integers(1, 32767 // n)), data.draw(st.integers(1, 127))
        theta = HeadParams(B, data.draw(st.integers(0, min(127, B // D))), D)
    multiplier, shift = data.draw(st.integers(1, 2**24 - 1)), data.draw(st.integers(24, 40))
    output = FixedPoint(data.draw(st.integers(1, 2**24 - 1)), data.draw(st.integers(18, 47)))
    requant = Requant(FixedPoint(multiplier, shift), 1.0, output)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    q, k, v = (rng.integers(-128, 128, (2, size, dim)).astype(np.int8) for size in (rows, n, n))
    lengths = None if data.draw(st.booleans()) else rng.integers(0, n + 1, 2)
    valid = None if lengths is None else np.broadcast_to(lengths[:, None], (2, rows))
    for out in ("pair", "int8"):
        got = tile.attention(q, k, v, theta, requant, lengths=lengths, causal=causal, out=out)
        expected = reference(q, k, v, theta, requant, valid=valid, causal=causal, out=out)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])


def test_a_sequence_without_keys_is_zero_in_every_plane_of_scores() -> None:
    q, k, v = head(np.random.default_rng(0), 32, 32, 32)
    N, Z = tile.attention(q, k, v, HeadParams(1023, 11, 40), Requant(FixedPoint(3, 9)), lengths=0)
    assert not N.any() and not Z.any()


@pytest.mark.parametrize("compiler", [Compiler.PIPELINED, Compiler.OPEN])
@pytest.mark.parametrize("generation", list(Generation))
def test_every_schedule_is_sound_and_fits(generation: Generation, compiler: Compiler) -> None:
    for n, dim, base in ((64, 32, 444), (64, 64, 255), (128, 64, 255)):
        found = tile.modelled(generation, n, dim, compiler, base)
        for kernel in (found.fused, found.logits, found.values):
            assert kernel.per_row >= kernel.bound
            assert kernel.fits_registers
            for region in kernel.regions:
                assert violations(region.schedule, machine(generation)) == [], region.name


@pytest.mark.parametrize("dim", tile.HEAD_SIZES)
@pytest.mark.parametrize("n", [64, 128])
def test_one_kernel_takes_fewer_cycles_than_three(n: int, dim: int) -> None:
    found = tile.modelled("aie2", n, dim)
    assert found.fused.per_row < found.separate
    assert found.peak < found.logits.per_row + found.values.per_row
    assert 0.65 < found.share_of_peak < 1


def test_the_multiplier_does_both_products_and_little_else() -> None:
    found = tile.modelled("aie2", 128, 64)
    assert found.peak == 64
    # 64 for the products, one each per eight rows and 8 keys for the sums, two for the scores.
    assert found.peak + 6 <= found.fused.issues["vec"] <= found.peak + 7


def test_a_load_is_hoisted_only_if_every_iteration_reads_it() -> None:
    def load(address: int, result: int) -> Operation:
        return Operation("load", 32, 8, result, (), address=address, bytes=32)

    # Iterations 1 and 2 read 64, as those of a loop over rows and columns of a matrix may.
    addresses = (0, 64, 64, 128)
    loop = Loop("rows", [[load(at, 2 * i), load(4096, 2 * i + 1)] for i, at in enumerate(addresses)])
    body = [item for item in loop.iterations[2] if isinstance(item, Operation)]
    hoisted, rest = split_invariant(body, set(range(8)), addresses_read_always(loop))
    assert [item.address for item in hoisted] == [4096]
    assert [item.address for item in rest] == [64]


def test_command() -> None:
    done = CliRunner().invoke(app, ["attention"])
    assert done.exit_code == 0, done.output
    assert "every bit" in done.output
