"""The native kernels return the reference's bits, on every instruction set, for every kind of call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccs
from hccs.backends.cpu import instruction_sets as isa
from hccs.reference.softmax import softmax as slow_reference
from tests.conftest import from_four_threads, logits, recalled, triples

reference_softmax = recalled(slow_reference)

MODES = [mode.value for mode in hccs.Mode]
# Around every boundary the kernels know: a vector of each instruction set, its double, unrolled lengths.
COLUMNS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 512, 515]

pytestmark = pytest.mark.usefixtures("instruction_set")


def assert_same_bits(x, theta, mode, valid=None):
    expected = reference_softmax(x, theta, mode, valid)
    found = hccs.softmax(x, theta, mode, valid)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_around_every_block_and_vector_boundary(mode, columns):
    region = hccs.Region(columns)
    theta = hccs.HeadParams(region.max_base, region.max_slope(90), 90)
    x = logits(columns, (37, columns))
    assert_same_bits(x, theta, mode)
    lengths = np.random.default_rng(columns).integers(0, columns + 1, 37)
    assert_same_bits(x, theta, mode, lengths)
    assert_same_bits(x, theta, mode, lengths[:1])
    mask = np.random.default_rng(columns).random((37, columns)) < 0.7
    assert_same_bits(x, theta, mode, mask)
    assert_same_bits(x, theta, mode, mask[0])


@settings(max_examples=150)
@given(
    data=st.data(), columns=st.integers(1, 200), mode=st.sampled_from(MODES), seed=st.integers(0, 2**32 - 1)
)
def test_any_heads_shapes_and_masks(data, columns, mode, seed):
    batch, heads, queries = (data.draw(st.integers(1, high)) for high in (3, 3, 19))
    theta = hccs.HeadParams(*np.array([data.draw(triples(columns)) for _ in range(heads)]).T)
    x = logits(seed, (batch, heads, queries, columns), spread=data.draw(st.sampled_from([1.0, 20.0, 90.0])))
    rng = np.random.default_rng(seed)
    valid = data.draw(
        st.sampled_from(
            [
                None,
                rng.random(x.shape) < 0.5,
                rng.random((batch, 1, 1, columns)) < 0.8,
                rng.random((queries, columns)) < 0.5,
                rng.random((batch, heads, queries, 1)) < 0.5,
                rng.integers(0, columns + 1, x.shape[:-1]),
                rng.integers(0, columns + 1, (batch, 1, 1)),
                np.minimum(np.arange(1, queries + 1), columns),
            ]
        )
    )
    assert_same_bits(x, theta, mode, valid)


@pytest.mark.parametrize("mode", MODES)
def test_every_row_sum_from_1_to_32767(mode):
    sums = np.arange(1, 32768)
    theta = hccs.HeadParams(B=sums, S=0, D=1)
    assert_same_bits(np.zeros((32767, 1, 1), np.int8), theta, mode)


@pytest.mark.parametrize("mode", ["u8_div", "u8_clb"])
@pytest.mark.parametrize("columns", [20, 64, 128, 300])
def test_short_row_rule_inside_complete_blocks(mode, columns):
    # B as small as calibration for n = 512 gives it, rows much shorter: Z < 256 in every row.
    theta = hccs.HeadParams(B=3, S=1, D=3)
    x = logits(1, (40, columns))
    assert_same_bits(x, theta, mode, np.full(40, 17))
    assert_same_bits(x, theta, mode, np.arange(40) % columns)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [-128, 0, 127])
def test_constant_rows(mode, value):
    assert_same_bits(np.full((17, 64), value, np.int8), hccs.HeadParams(444, 11, 40), mode)


@pytest.mark.parametrize("mode", MODES)
def test_extreme_distances_wrap_correctly(mode):
    x = np.where(np.arange(64) % 2, 127, -128).astype(np.int8)[None].repeat(20, 0)
    assert_same_bits(x, hccs.HeadParams(511, 3, 127), mode)


def test_longest_row_the_arithmetic_allows():
    assert_same_bits(logits(3, (2, 32767)), hccs.HeadParams(1, 0, 1), "i16_div")


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (5, 0), (0,)])
def test_nothing_in_nothing_out(shape):
    assert hccs.softmax(np.zeros(shape, np.int8), hccs.HeadParams(444, 11, 40)).shape == shape


def test_one_row_without_a_query_dimension():
    assert_same_bits(logits(4, (64,)), hccs.HeadParams(444, 11, 40), "u8_div")


def test_strided_input_and_mask():
    x = logits(5, (40, 2, 130))[::2, 1, ::2]
    mask = (np.random.default_rng(5).random((20, 130)) < 0.5)[:, ::2]
    assert_same_bits(x, hccs.HeadParams(444, 11, 40), "u8_clb", mask)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", ">i4", "uint32", "int64", "uint64"])
def test_lengths_of_any_integer_dtype_and_layout(dtype):
    x, theta = logits(10, (6, 5, 64)), hccs.HeadParams(444, 11, 40)
    lengths = np.random.default_rng(10).integers(0, 65, (6, 5))
    expected = reference_softmax(x, theta, "u8_div", lengths)
    np.testing.assert_array_equal(hccs.softmax(x, theta, "u8_div", lengths.astype(dtype)), expected)
    spread = np.zeros((12, 15), dtype)[::2, ::3]
    spread[...] = lengths
    np.testing.assert_array_equal(hccs.softmax(x, theta, "u8_div", spread), expected)
    unaligned = np.frombuffer(b"?" + lengths.astype(dtype).tobytes(), dtype, offset=1).reshape(6, 5)
    np.testing.assert_array_equal(hccs.softmax(x, theta, "u8_div", unaligned), expected)


def test_threads_change_nothing():
    x = logits(6, (3, 2, 1000, 64))
    theta = hccs.HeadParams([444, 300], [11, 4], [40, 60])
    lengths = np.random.default_rng(6).integers(0, 65, (3, 2, 1000))
    one = hccs.softmax(x, theta, "u8_div", lengths, threads=1)
    for threads in (2, 3, 7, 64):
        np.testing.assert_array_equal(hccs.softmax(x, theta, "u8_div", lengths, threads=threads), one)


def test_calls_from_several_python_threads():
    x, theta = logits(7, (4000, 64)), hccs.HeadParams(444, 11, 40)
    expected = hccs.softmax(x, theta)
    found = from_four_threads(lambda: hccs.softmax(x, theta))
    assert len(found) == 4
    for result in found:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [5, 32, 64, 100, 128, 256])
def test_writes_its_rows_and_nothing_else(mode, columns):
    dtype = hccs.Mode(mode).dtype
    around = np.full(18 * columns + 128, 77, dtype)
    out = around[64:-64].reshape(18, columns)
    x = logits(8, (18, columns))
    before = x.copy()
    result = hccs.softmax(x, hccs.HeadParams(100, 1, 40), mode, np.arange(18) % columns, out=out)
    assert result is out
    np.testing.assert_array_equal(around[:64], 77)
    np.testing.assert_array_equal(around[-64:], 77)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(
        out, reference_softmax(x, hccs.HeadParams(100, 1, 40), mode, np.arange(18) % columns)
    )


@pytest.mark.parametrize(
    ("mode", "columns", "offset"), [("u8_div", 64, 0), ("i16_div", 48, 3), ("u8_clb", 256, 1)]
)
def test_outputs_larger_than_the_caches(instruction_set, mode, columns, offset):
    rows = (48 << 20) // columns
    x = np.resize(logits(9, (1000, columns)), (rows, columns))
    theta = hccs.HeadParams(hccs.Region(columns).max_base, 1, 60)
    out = np.full(rows * columns + offset + 64, 77, hccs.Mode(mode).dtype)
    inside = out[offset : offset + rows * columns].reshape(rows, columns)
    hccs.softmax(x, theta, mode, out=inside)
    expected = reference_softmax(x[:1000], theta, mode)
    for first in range(0, rows, 1000):
        part = inside[first : first + 1000]
        assert (part == expected[: len(part)]).all()
    assert (out[:offset] == 77).all()
    assert (out[-64:] == 77).all()


def test_info_names_the_instruction_set_in_use(instruction_set):
    assert hccs.backends.cpu.info().isa == instruction_set
    assert instruction_set in isa.available()
