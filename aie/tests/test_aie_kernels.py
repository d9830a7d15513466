"""The AI Engine kernels on the emulation: the reference's bits, for every mode, length and edge."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccs
from hccs import HeadParams, Mode, Region
from hccs.errors import DtypeError, MaskError, ModeError, ParameterError, ShapeError
from hccs.reference.softmax import softmax as reference_softmax
from hccs_aie import _emulation, emulator
from hccs_aie.emulator import Kernel

MODES = [mode.value for mode in Mode]


def edge_thetas(n: int) -> list[HeadParams]:
    region = Region(n)
    return [
        HeadParams(region.max_base, 0, 1),
        HeadParams(region.max_base, region.max_slope(127), 127),
        HeadParams(region.min_base(region.max_slope(40), 40), region.max_slope(40), 40),
        HeadParams(1, 0, 127),  # calibrated for far longer rows: Z stays below 256
        HeadParams(
            min(127, region.max_base), min(127, region.max_base), 1
        ),  # rho * S passes int16 in i16_clb
    ]


def edge_rows(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    rows = [
        np.full(n, -128),
        np.full(n, 127),
        np.where(np.arange(n) == n - 1, 127, -128),
        np.where(np.arange(n) == 0, -127, -128),
        np.linspace(-128, 127, n).astype(int),
        rng.integers(-128, 128, n),
        rng.integers(-128, -120, n),
        rng.integers(-5, 5, n),
    ]
    return np.array(rows, np.int8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", range(32, 513, 32))
def test_edges_equal_the_reference(mode: str, n: int) -> None:
    x = edge_rows(n)
    lengths = np.array([0, 1, n, n // 2, n - 1, 2, n // 3, 31])
    for theta in edge_thetas(n):
        assert np.array_equal(emulator.softmax(x, theta, mode), reference_softmax(x, theta, mode)), theta
        got = emulator.softmax(x, theta, mode, lengths)
        assert np.array_equal(got, reference_softmax(x, theta, mode, lengths)), theta


@pytest.mark.parametrize("mode", MODES)
def test_a_million_random_rows(mode: str) -> None:
    """250,000 rows per mode. `hccs.softmax`, held to the reference elsewhere, is quick enough to compare."""
    rng = np.random.default_rng(MODES.index(mode))
    todo = 250_000
    while todo > 0:
        n = int(rng.integers(1, 17)) * 32
        region = Region(n)
        heads, rows = 20, min(todo // 20 + 1, 160_000 // n)
        D = rng.integers(1, 128, heads)
        S = np.array([rng.integers(0, region.max_slope(d) + 1) for d in D])
        B = np.array([rng.integers(max(1, s * d), region.max_base + 1) for s, d in zip(S, D, strict=True)])
        centre, spread = rng.integers(-128, 128), rng.integers(1, 100)
        x = np.clip(rng.normal(centre, spread, (heads, rows, n)), -128, 127).astype(np.int8)
        lengths = rng.integers(0, n + 1, (heads, rows)) if rng.random() < 0.5 else None
        theta = HeadParams(B, S, D)
        assert np.array_equal(
            emulator.softmax(x, theta, mode, lengths), hccs.softmax(x, theta, mode, lengths)
        )
        todo -= heads * rows


@settings(max_examples=100, deadline=None)
@given(data=st.data(), mode=st.sampled_from(MODES), chunks=st.integers(1, 16))
def test_any_two_lines_any_rows(data: st.DataObject, mode: str, chunks: int) -> None:
    n = 32 * chunks
    most = 32767 // n
    D = data.draw(st.integers(1, 127))
    D2 = data.draw(st.integers(1, D))
    S = data.draw(st.integers(0, min(127, most // D)))
    S2 = data.draw(st.integers(0, min(127 - S, (most - S * D) // D2)))
    B = data.draw(st.integers(max(1, S * D + S2 * D2), most))
    x = np.frombuffer(data.draw(st.binary(min_size=2 * n, max_size=2 * n)), np.int8).reshape(2, n)
    lengths = np.array(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    theta = HeadParams(B, S, D, S2, D2, wide=True)
    assert np.array_equal(emulator.softmax(x, theta, mode), reference_softmax(x, theta, mode))
    assert np.array_equal(
        emulator.softmax(x, theta, mode, lengths), reference_softmax(x, theta, mode, lengths)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", range(32, 513, 96))
def test_edges_of_two_lines_equal_the_reference(mode: str, n: int) -> None:
    x = edge_rows(n)
    lengths = np.array([0, 1, n, n // 2, n - 1, 2, n // 3, 31])
    most = 32767 // n
    for S, D, S2, D2 in (
        (0, 127, 0, 1),
        (0, 127, most // 127, 127),
        (1, min(60, most), 0, 60),
        (0, 40, most // 20, 20),
    ):
        theta = HeadParams(most, S, D, min(S2, 127), min(D2, D), wide=True)
        assert np.array_equal(emulator.softmax(x, theta, mode), reference_softmax(x, theta, mode)), theta
        got = emulator.softmax(x, theta, mode, lengths)
        assert np.array_equal(got, reference_softmax(x, theta, mode, lengths)), theta


@settings(max_examples=60, deadline=None)
@given(data=st.data(), mode=st.sampled_from(MODES), chunks=st.integers(1, 16))
def test_any_theta_any_rows(data: st.DataObject, mode: str, chunks: int) -> None:
    n = 32 * chunks
    D = data.draw(st.integers(1, 127))
    S = data.draw(st.integers(0, min(127, 32767 // n // D)))
    B = data.draw(st.integers(max(1, S * D), 32767 // n))
    x = np.frombuffer(data.draw(st.binary(min_size=2 * n, max_size=2 * n)), np.int8).reshape(2, n)
    lengths = np.array(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    theta = HeadParams(B, S, D)
    assert np.array_equal(
        emulator.softmax(x, theta, mode, lengths), reference_softmax(x, theta, mode, lengths)
    )


def test_heads_broadcast_as_in_the_reference() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 5, 64), dtype=np.int8)
    theta = HeadParams([444, 300, 255], [11, 4, 1], [40, 60, 127])
    assert np.array_equal(emulator.softmax(x, theta, "i16_div"), reference_softmax(x, theta, "i16_div"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [32, 64, 96, 128, 512])
def test_the_papers_kernel_has_the_same_bits(mode: str, n: int) -> None:
    x = np.random.default_rng(n).integers(-128, 128, (40, n), dtype=np.int8)
    region = Region(n)
    theta = HeadParams(region.max_base, region.max_slope(60), 60)
    got = emulator.softmax(x, theta, mode, kernel=Kernel.BY_ROW)
    assert np.array_equal(got, reference_softmax(x, theta, mode))


ROW = np.zeros((2, 64), np.int8)
THETA = HeadParams(444, 11, 40)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (DtypeError, "int8 logits", lambda: emulator.softmax(ROW.astype(np.int16), THETA)),
        (ShapeError, "For one row", lambda: emulator.softmax(ROW[0], THETA)),
        (ShapeError, "Pad the rows to 64", lambda: emulator.softmax(ROW[:, :40], THETA)),
        (ShapeError, "multiple of 32", lambda: emulator.softmax(np.zeros((1, 544), np.int8), THETA)),
        (ShapeError, "one .* per head", lambda: emulator.softmax(ROW, HeadParams([1, 2], 0, 1))),
        (ParameterError, "columns \\* B", lambda: emulator.softmax(ROW, HeadParams(512, 1, 1))),
        (ParameterError, "S\\*D", lambda: emulator.softmax(ROW, HeadParams(10, 11, 40))),
        (ModeError, "u8_clb", lambda: emulator.softmax(ROW, THETA, "i8")),
        (MaskError, "between 0 and 64", lambda: emulator.softmax(ROW, THETA, lengths=np.array([1, 65]))),
        (MaskError, "broadcast", lambda: emulator.softmax(ROW, THETA, lengths=np.array([1, 2, 3]))),
        (DtypeError, "masked array", lambda: emulator.softmax(np.ma.masked_equal(ROW, 0), THETA)),
        (DtypeError, "hccs.HeadParams", lambda: emulator.softmax(ROW, (444, 11, 40))),
        (DtypeError, "int8 logits", lambda: emulator.softmax(ROW.tolist(), THETA)),
        (DtypeError, "int8 logits", lambda: emulator.softmax(ROW.view(np.uint8), THETA)),
        (ParameterError, "kernel to be one of 'blocked'", lambda: emulator.softmax(ROW, THETA, kernel="x")),
        (ShapeError, "multiples of 32", lambda: emulator.trace("blocked", "u8_clb", 64, THETA, rows=5)),
        (ShapeError, "multiples of 1 ", lambda: emulator.trace("by_row", "u8_clb", 64, THETA, rows=0)),
        (DtypeError, "whole number", lambda: emulator.trace("blocked", "u8_clb", 64.0, THETA)),
        (DtypeError, "hccs.HeadParams", lambda: emulator.trace("blocked", "u8_clb", 64, (444, 11, 40))),
        (ParameterError, "columns", lambda: emulator.trace("blocked", "u8_clb", 128, THETA)),
        (
            ShapeError,
            "one head",
            lambda: emulator.trace("blocked", "u8_clb", 64, HeadParams([444, 300], [11, 4], [40, 60])),
        ),
        (ShapeError, "multiple of 16", lambda: emulator.trace_bf16(True, 20)),
        (ShapeError, "multiple of 16", lambda: emulator.trace_bf16(True, 16, rows=0)),
        (MaskError, "prefixes", lambda: emulator.softmax(ROW, THETA, lengths=np.ones((2, 64), bool))),
        (
            MaskError,
            "full rows",
            lambda: emulator.softmax(ROW, THETA, lengths=np.array([1, 2]), kernel="by_row"),
        ),
        (
            ParameterError,
            "without a shift",
            lambda: emulator.softmax(ROW, HeadParams(1023, 4, 50, 41, 20, f=2)),
        ),
        (ParameterError, "B <= 511", lambda: emulator.softmax(ROW, HeadParams(1023, 4, 50, 41, 20))),
        (ParameterError, "S \\+ S2 <= 127", lambda: emulator.softmax(ROW, HeadParams(500, 100, 1, 100, 1))),
        (
            ParameterError,
            "blocked kernel",
            lambda: emulator.softmax(ROW, HeadParams(500, 1, 50, 9, 20), kernel="by_row"),
        ),
        (
            ParameterError,
            "256",
            lambda: emulator.softmax(ROW, HeadParams(1, 0, 1), "u8_clb", kernel="by_row"),
        ),
    ],
)
def test_refusals(error: type[Exception], match: str, call: object) -> None:
    with pytest.raises(error, match=match):
        call()  # type: ignore[operator]


def test_more_rows_than_go_at_once() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (2, emulator._ROWS_AT_ONCE + 3, 32), dtype=np.int8)
    lengths = np.random.default_rng(1).integers(0, 33, x.shape[:-1])
    theta = HeadParams([444, 300], [11, 4], [40, 60])
    assert np.array_equal(
        emulator.softmax(x, theta, "u8_clb", lengths), hccs.softmax(x, theta, "u8_clb", lengths)
    )


def test_views_of_any_layout() -> None:
    whole = np.random.default_rng(0).integers(-128, 128, (64, 3, 128), dtype=np.int8)
    for x in (
        whole[:, :, ::2],
        whole[::-1, 1, :64],
        whole.T[::2, :, :].T,
        np.asfortranarray(whole[:, 0, :64]),
    ):
        assert np.array_equal(emulator.softmax(x, THETA, "i16_clb"), reference_softmax(x, THETA, "i16_clb"))


def test_kernels_in_many_threads_and_traces_beside_them() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (40, 64), dtype=np.int8)
    expected = reference_softmax(x, THETA, "u8_div")
    traced = len(emulator.trace("blocked", "u8_div", 64, THETA))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: emulator.softmax(x, THETA, "u8_div"), range(40)))
        lengths = list(pool.map(lambda _: len(emulator.trace("blocked", "u8_div", 64, THETA)), range(8)))
    assert all(np.array_equal(p, expected) for p in found)
    assert set(lengths) == {traced}


NATIVE = {"by_row": False, "mode": 0, "x": np.zeros((32, 64), np.int8), "lengths": None, "record": False}
NATIVE |= {"out": np.zeros(32 * 64 * 2, np.uint8), "n": 64, "B": 444, "S": 11, "D": 40, "S2": -1, "D2": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"n": 48},
        {"n": 1024},
        {"mode": 5},
        {"mode": -1},
        {"mode": 3},
        {"x": np.zeros((5, 64), np.int8)},
        {"x": np.zeros((0, 64), np.int8)},
        {"out": np.zeros(32, np.uint8)},
        {"lengths": np.zeros(3, np.int16)},
        {"lengths": np.full(32, 65, np.int16)},
        {"lengths": np.full(32, -1, np.int16)},
        {"B": 512},
        {"B": 2**31 - 1, "S": 2**31 - 1, "D": 2**31 - 1},
        {"D": 128},
        {"S2": 1, "D2": 41},
        {"S2": 1, "D2": 0},
        {"S2": 127, "D2": 1},
        {"S2": 2, "D2": 3},
        {"S2": -2, "D2": 3},
        {"S2": 1, "D2": 3, "by_row": True},
    ],
)
def test_the_native_module_stays_inside_its_arrays(change: dict[str, object]) -> None:
    """Nothing in the package calls it so; a mistake there must not reach memory."""
    with pytest.raises(ValueError):
        _emulation.integer_kernel(**{**NATIVE, **change})


@pytest.mark.parametrize("n", [0, 8, 24])
def test_the_native_baseline_stays_inside_its_arrays(n: int) -> None:
    x = np.zeros((2, 16), np.uint16)
    with pytest.raises(ValueError):
        _emulation.bf16_kernel(True, x, np.zeros_like(x), n, False)
    with pytest.raises(ValueError):
        _emulation.bf16_kernel(True, x, np.zeros((1, 16), np.uint16), 16, False)
