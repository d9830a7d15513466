"""The linear kernels return the reference's bits: every instruction set, shape, output and form of bytes."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from hccs.backends.cpu import _native
from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT, INT32_LIMIT, LinearParams
from hccs.reference.linear import add, linear
from hccs.reference.table import look_up
from tests.conftest import from_four_threads, with_amx_model

pytestmark = [pytest.mark.usefixtures("instruction_set"), with_amx_model]

OUTPUTS = _native.LINEAR_OUTPUTS
REQUANTISED = tuple(output for output in OUTPUTS if output != "int32")


class PackedLinear:
    """A layer packed for the instruction set in use: rq(W x + b), then a table or the sum with a stream.

    Arrays of uint8 hold int8 values turned, x ^ 0x80.
    """

    def __init__(self, layer):
        self.outputs, self.inputs = layer.weight.shape
        self._layer = layer
        self._native = _native.PackedLinear(layer.weight, layer.bias, layer.multiplier)

    def __call__(self, x, *, table=None, stream=None, clamped=False, out=None, threads=1):
        output = "int32" if self._layer.multiplier is None else "int16"
        if output == "int16" and self._layer.limit == INT32_LIMIT:
            output = "long"
        elif output == "int16" and self._layer.limit == INT8_LIMIT:
            output = "int8" if table is None else "int8_table"
        elif stream is not None:
            output = "sum_int16" if clamped else "sum_int32"
        if out is None:
            kind = output.removeprefix("sum_").removesuffix("_table").replace("long", "int32")
            out = np.empty((*x.shape[:-1], self.outputs), kind)
        streamed = None if stream is None else stream.reshape(-1, self.outputs)
        rows = x.reshape(int(np.prod(x.shape[:-1])), self.inputs)
        if rows.strides[1] != 1 or rows.strides[0] < 0:
            rows = np.ascontiguousarray(rows)
        flat = out.reshape(len(rows), self.outputs)
        self._native.run(rows, OUTPUTS.index(output), table, streamed, flat, threads)
        return out


def limit_of(output):
    return INT8_LIMIT if output.startswith("int8") else INT32_LIMIT if output == "long" else INT16_LIMIT


def layer_for(output, weight, bias, multiplier, input_limit=128):
    """The layer whose outputs are of this kind."""
    limit = limit_of(output)
    return LinearParams(weight, bias, None if output == "int32" else multiplier, limit, input_limit)


def random_layer(rng, output, inputs, outputs):
    """Weights, biases and multipliers of all magnitudes: some outputs are clipped, some are nearly zero."""
    weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    bias = rng.integers(-(2 ** rng.integers(1, 24)), 2 ** rng.integers(1, 24), outputs).astype(np.int32)
    spread = 20 * 74 * max(inputs, 1) ** 0.5  # about that of the sums of such products
    largest = 60 if output.startswith("int8") else 2**29 if output == "long" else 20000
    wanted = largest * rng.uniform(0.1, 3, outputs)
    multiplier = np.clip(np.rint(2**16 * wanted / spread), 1, 2**24 - 1).astype(np.int32)
    return layer_for(output, weight, bias, multiplier)


def rows(rng, *shape):
    return np.clip(np.rint(rng.normal(0, 40, shape)), -128, 127).astype(np.int8)


def turned(x):
    return x.view(np.uint8) ^ 0x80


def expected(x, layer, output, table, stream):
    y = linear(x, layer)
    if output == "int8_table":
        return look_up(y, table)
    if output.startswith("sum"):
        return add(stream, y, INT16_LIMIT if output == "sum_int16" else None)
    return y


def extras(rng, output, shape):
    """What the output needs beside x: the call's arguments, and the reference's."""
    table = rng.integers(-128, 128, 256).astype(np.int8) if output == "int8_table" else None
    stream = rng.integers(-32768, 32768, shape).astype(np.int16) if output.startswith("sum") else None
    return {"table": table, "stream": stream, "clamped": output == "sum_int16"}, (table, stream)


def check(rng, x, layer, output, **options):
    call, given = extras(rng, output, (*x.shape[:-1], len(layer.bias)))
    want = expected(x, layer, output, *given)
    packed = PackedLinear(layer)
    got = packed(x, **call, **options)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(packed(turned(x), **call, **options), want)
    if output.startswith("int8"):
        out = np.empty(want.shape, np.uint8)
        packed(x, **call, **options, out=out)
        np.testing.assert_array_equal(out, turned(want))


@pytest.mark.parametrize("output", OUTPUTS)
def test_random_layers(output):
    rng = np.random.default_rng(0)
    for _ in range(150):
        count, inputs, outputs = (int(n) for n in rng.integers(1, [30, 70, 70]))
        check(rng, rows(rng, count, inputs), random_layer(rng, output, inputs, outputs), output)


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_number_of_rows_and_of_outputs(output):
    rng = np.random.default_rng(1)
    for count in range(1, 68):
        check(rng, rows(rng, count, 20), random_layer(rng, output, 20, 64), output)
    for outputs in range(1, 67):
        check(rng, rows(rng, 5, 8), random_layer(rng, output, 8, outputs), output)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    ("count", "inputs", "outputs"), [(300, 512, 96), (13, 2048, 70), (700, 130, 33), (1, 3, 1)]
)
def test_more_rows_than_a_chunk_and_wide_rows(output, count, inputs, outputs):
    rng = np.random.default_rng(2)
    check(rng, rows(rng, count, inputs), random_layer(rng, output, inputs, outputs), output)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("inputs", [4, 27, 1040])
def test_extreme_values(output, inputs):
    rng = np.random.default_rng(3)
    x = np.array([[-128] * inputs, [127] * inputs, [0] * inputs, [-127] * inputs], np.int8)
    x = np.concatenate([x, rng.choice(np.array([-128, 127], np.int8), (9, inputs))])
    weight = np.concatenate([np.full((20, inputs), 127), np.full((20, inputs), -127)]).astype(np.int8)
    room = 2**31 - 1 - 128 * 127 * inputs  # the largest bias that still fits
    bias = np.resize([room, -room, 0, 2**24, -(2**24)], 40).astype(np.int32)
    for multiplier in (1, 2, 127, 128, 255, 2**16, 2**24 - 1):
        layer = layer_for(output, weight, bias, np.full(40, multiplier, np.int32))
        check(rng, x, layer, output)


def magnitudes(rng, output, channels):
    """One weight of 1: the sum is x + bias, so that biases choose what is requantised."""
    multiplier = (2 ** rng.uniform(0, 24, channels)).astype(np.int32)
    # Half of the channels are near a whole output, its half, or the output's limit, where x is small.
    limit = limit_of(output)
    y = rng.integers(-limit - 2, limit + 3, channels) + rng.choice([0, 0.5], channels)
    anywhere = rng.normal(0, 2.0 ** rng.uniform(0, 30, channels))
    bias = np.where(rng.random(channels) < 0.5, y * 2**16 / multiplier, anywhere)
    bias = np.clip(bias, 256 - 2**31, 2**31 - 256).astype(np.int32)
    return layer_for(output, np.ones((channels, 1), np.int8), bias, multiplier)


@pytest.mark.parametrize("output", REQUANTISED)
def test_requantisation_of_every_magnitude(output):
    rng = np.random.default_rng(4)
    check(rng, np.arange(-128, 128).astype(np.int8)[:, None], magnitudes(rng, output, 3000), output)


@pytest.mark.parametrize("output", REQUANTISED)
def test_ties_go_to_the_even_neighbour(output):
    """acc * M / 2^16 = k + 1/2 for every k in reach, with all ways to share the factors between acc and M."""
    rng = np.random.default_rng(5)
    limit = min(limit_of(output), INT16_LIMIT)
    halves = np.concatenate(
        [np.arange(-200, 200), np.arange(limit - 60, limit + 60), np.arange(-limit - 60, 60 - limit)]
    )
    for power in range(16):  # M = 2^power, acc = (2k + 1) * 2^(15 - power)
        acc = (2 * halves + 1) * 2 ** (15 - power)
        layer = layer_for(
            output,
            np.ones((len(acc), 1), np.int8),
            acc.astype(np.int32),
            np.full(len(acc), 2**power, np.int32),
        )
        y = linear(np.zeros((1, 1), np.int8), layer)
        assert (np.abs(y) % 2 == 0).sum() > len(acc) // 4, "these are ties"
        check(rng, np.array([[0], [1], [-1]], np.int8), layer, output)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of rounding modes are those of x86")
@pytest.mark.parametrize("output", REQUANTISED)
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "to zero"])
def test_the_callers_rounding_mode_does_not_matter(output, mode):
    rng = np.random.default_rng(6)
    layer = random_layer(rng, output, 64, 100)
    large = np.where(np.arange(100) % 3, layer.bias, 2**26).astype(np.int32)  # beyond what float32 holds
    layer = layer_for(output, layer.weight, large, layer.multiplier)
    x = rows(rng, 40, 64)
    call, given = extras(rng, output, (40, 100))
    want, packed = expected(x, layer, output, *given), PackedLinear(layer)
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(mode) == 0
    try:
        got = packed(x, **call)
    finally:
        libm.fesetround(0)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads(output, threads):
    rng = np.random.default_rng(7)
    for count in (1, 5, 100):
        check(rng, rows(rng, count, 32), random_layer(rng, output, 32, 200), output, threads=threads)


def test_many_python_threads_at_once():
    rng = np.random.default_rng(8)
    layer, x = random_layer(rng, "int8", 96, 80), rows(rng, 200, 96)
    packed, want = PackedLinear(layer), linear(x, layer)
    for got in from_four_threads(lambda: packed(x, threads=2)):
        np.testing.assert_array_equal(got, want)


def test_views_and_leading_dimensions():
    rng = np.random.default_rng(9)
    layer = random_layer(rng, "int8", 24, 40)
    packed, wide = PackedLinear(layer), rows(rng, 3, 7, 100)
    for x in (wide[..., 8:32], wide[:, 0, :24], wide[1, 2, :24], wide[::-1, :, 40:64], wide[..., 2:50:2]):
        np.testing.assert_array_equal(packed(x), linear(x, layer))
    assert packed(wide[:0, 0, :24]).shape == (0, 40)


def test_the_sum_may_replace_the_stream():
    rng = np.random.default_rng(10)
    layer, x = random_layer(rng, "int16", 50, 70), rows(rng, 30, 50)
    stream = rng.integers(-32767, 32768, (30, 70)).astype(np.int16)
    want = add(stream, linear(x, layer), INT16_LIMIT)
    PackedLinear(layer)(x, stream=stream, clamped=True, out=stream)
    np.testing.assert_array_equal(stream, want)


def test_nothing_is_written_beside_the_outputs():
    rng = np.random.default_rng(11)
    for output, dtype in (("int8", np.int8), ("int16", np.int16), ("int32", np.int32)):
        layer, x = random_layer(rng, output, 12, 33), rows(rng, 14, 12)
        padded = np.full((14, 48), 77, dtype)
        native = PackedLinear(layer)._native
        native.run(x, OUTPUTS.index(output), None, None, padded[:, 5:38], 1)
        np.testing.assert_array_equal(padded[:, 5:38], linear(x, layer))
        assert (padded[:, :5] == 77).all() and (padded[:, 38:] == 77).all()


def test_what_would_read_or_write_outside_an_array_is_refused():
    rng = np.random.default_rng(12)
    x, table = rows(rng, 3, 8), np.zeros(256, np.int8)
    stream = np.zeros((3, 4), np.int16)
    native, out = PackedLinear(random_layer(rng, "int8", 8, 4))._native, np.empty((3, 4), np.int8)
    for bad in (
        (x[:, :7], 1, None, None, out, 1),
        (x, 1, None, None, out[:2], 1),
        (x, 1, None, None, out.astype(np.int16), 1),
        (x, 2, table[:255], None, out, 1),
        (x, 9, None, None, out, 1),
        (x, 5, None, stream[:2], out.astype(np.int16), 1),
        (x, 1, None, None, out, 0),
        (x[:, ::-1], 1, None, None, out, 1),
    ):
        with pytest.raises(ValueError):
            native.run(*bad)
    with pytest.raises(ValueError):
        _native.PackedLinear(np.zeros((4, 8), np.int8), np.zeros(3, np.int32), None)
