"""A hundred thousand random instances of every operator of an encoder against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hccs.errors import ShapeError
from hccs.numbers.layers import EmbeddingParams, LinearParams, NormParams, PatchParams, quantise_linear
from hccs.reference.embedding import embed_patches, embedding
from hccs.reference.layer_norm import layer_norm
from hccs.reference.linear import add, linear, narrow, requantise
from hccs.reference.table import look_up, table

MANY = 100_000


def rounded(numerator, denominator):
    """Half to even, by the integers of Python."""
    return round(Fraction(numerator, denominator))


def test_requantisation_is_exact():
    """Accumulators of every size, ties among them."""
    rng = np.random.default_rng(0)
    acc = (rng.uniform(-1, 1, MANY) * 2.0 ** rng.uniform(0, 31, MANY)).astype(np.int64)
    multiplier = (2.0 ** rng.uniform(0, 24, MANY)).astype(np.int64).clip(1, 2**24 - 1)
    multiplier[::5] = 2 ** rng.integers(0, 16, MANY // 5)
    acc[::10] = (2 * acc[::10] + 1) % 2**12 * (2**15 // multiplier[::10])
    found = requantise(acc, multiplier, 32767)
    exact = [rounded(a * m, 2**16) for a, m in zip(acc.tolist(), multiplier.tolist(), strict=True)]
    assert found.tolist() == [min(max(value, -32767), 32767) for value in exact]
    ties = sum(a * m % 2**16 == 2**15 for a, m in zip(acc.tolist(), multiplier.tolist(), strict=True))
    assert ties > 1000


def test_linear_layers_are_their_sums_requantised():
    """Shapes, widths and multipliers at random; sums and products in Python's integers."""
    rng = np.random.default_rng(1)
    checked = 0
    while checked < MANY:
        outputs, inputs, rows = (int(n) for n in rng.integers(1, [40, 70, 40]))
        limit = int(rng.choice([127, 32767]))
        weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        bias = rng.integers(-(2**20), 2**20, outputs).astype(np.int32)
        multiplier = rng.integers(1, 2 ** int(rng.integers(2, 24)), outputs).astype(np.int32)
        scores = rng.random() < 0.2
        layer = LinearParams(weight, bias, None if scores else multiplier, limit, 128)
        x = rng.integers(-128, 128, (rows, inputs)).astype(np.int8)
        sums = x.astype(object) @ weight.T.astype(object) + bias.astype(object)
        if not scores:
            product = sums * multiplier.astype(object)
            floor, rest = product // 2**16, product % 2**16
            nearest = floor + ((rest > 2**15) | ((rest == 2**15) & (floor % 2 == 1)))
            sums = np.clip(nearest, -limit, limit)
        found = linear(x, layer)
        assert found.dtype == (np.int32 if scores else np.int8 if limit == 127 else np.int16)
        assert np.array_equal(found, sums.astype(np.int64))
        checked += found.size


def test_narrowing_every_int16_by_every_shift():
    x = np.arange(-32767, 32768).astype(np.int16)
    for bits in range(15):
        exact = np.clip(np.rint(x.astype(np.float64) / 2**bits), -127, 127)  # dyadic: exact in float64
        assert np.array_equal(narrow(x, bits), exact)


def test_sums_are_exact_and_clamped_where_they_are_the_stream():
    rng = np.random.default_rng(2)
    x, y = rng.integers(-32767, 32768, (2, MANY)).astype(np.int16)
    exact = x.astype(np.int64) + y
    assert add(x, y).dtype == np.int32 and np.array_equal(add(x, y), exact)
    clamped = add(x, y, 32767)
    assert clamped.dtype == np.int16 and np.array_equal(clamped, np.clip(exact, -32767, 32767))
    assert (clamped == 32767).any() and (clamped == -32767).any()


@pytest.mark.parametrize("name", ["tanh", "sin", "square", "cbrt", "arctan"])
def test_tables_are_off_by_half_a_step(name):
    rng = np.random.default_rng(3)
    x = np.arange(-128, 128).astype(np.int8)
    for _ in range(MANY // 256 // 5 + 1):
        in_scale, out_scale = 10 ** rng.uniform(-4, 1, 2)
        entries = table(getattr(np, name), in_scale, out_scale)
        real = np.clip(getattr(np, name)(x * in_scale) / out_scale, -127, 127)
        assert (abs(look_up(x, entries) - real) <= 0.5 + 1e-12).all()


def test_embeddings_are_exact_sums_clamped_where_they_are_the_stream():
    rng = np.random.default_rng(4)
    for shift in range(8):
        reach = min(32767, (2**16 - (127 << shift)) // 2)
        params = EmbeddingParams(
            rng.integers(-127, 128, (60, 16)).astype(np.int8),
            rng.integers(-reach, reach + 1, (30, 16)).astype(np.int16),
            rng.integers(-reach, reach + 1, (3, 16)).astype(np.int16),
            shift,
        )
        tokens, types = rng.integers(0, 60, (28, 30)), rng.integers(0, 3, (28, 30))
        exact = [
            [
                [
                    int(params.words[t, c]) * 2**shift + int(params.positions[p, c]) + int(params.types[k, c])
                    for c in range(16)
                ]
                for p, (t, k) in enumerate(zip(*rows, strict=True))
            ]
            for rows in zip(tokens.tolist(), types.tolist(), strict=True)
        ]
        given = (tokens, np.arange(30)[None], types, params)
        assert embedding(*given).tolist() == exact and abs(np.array(exact)).max() <= 2**16
        assert np.array_equal(embedding(*given, 32767), np.clip(exact, -32767, 32767))


def test_patches_are_a_convolution_off_by_its_roundings_alone():
    """Against the real convolution of the normalised image, patch by patch, pixel by pixel."""
    rng = np.random.default_rng(5)
    for _ in range(12):
        channels, patch, across, down, width = (int(n) for n in rng.integers(1, [4, 5, 4, 4, 12]))
        weight, bias = rng.normal(0, 0.05, (width, channels, patch, patch)), rng.normal(0, 1, width)
        special, step = rng.normal(0, 1, (int(rng.integers(1, 3)), width)), 10 ** rng.uniform(-3, -2)
        positions = rng.normal(0, 1, (len(special) + across * down, width))
        projection = quantise_linear(
            weight.reshape(width, -1), bias, in_scale=1.0, out_scale=step, limit=32767, input_limit=128
        )
        int16 = [np.rint(part / step).astype(np.int16) for part in (special, positions)]
        params = PatchParams(projection, *int16, patch, (channels, down * patch, across * patch))
        images = rng.integers(0, 256, (5, channels, down * patch, across * patch)).astype(np.uint8)
        found = embed_patches(images, params)
        assert found.dtype == np.int16 and found.shape == (5, params.tokens, width)
        for image, rows in zip(images.astype(float) - 128, found, strict=True):
            real = [*special]
            for row in range(down):
                for column in range(across):
                    cut = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
                    real.append((weight * cut).sum((1, 2, 3)) + bias)
            real = np.clip((np.array(real) + positions) / step, -32767, 32767)
            pixels = channels * patch**2
            bound = 1.5 + projection.multiplier / 2**16 * (128 * pixels / 2 + 0.5)
            assert (abs(rows - real) <= bound).all()
    with pytest.raises(ShapeError, match="whole patches"):
        PatchParams(projection, *int16, patch, (channels, down * patch + 1, across * patch))


def test_clamped_streams_of_patches_saturate():
    one = quantise_linear([[1.0]], [0.0], in_scale=1.0, out_scale=1 / 300, limit=32767, input_limit=128)
    rows = np.zeros((1, 1), np.int16), np.array([[0], [32767], [-32767]], np.int16)
    params = PatchParams(one, *rows, 1, (1, 1, 2))
    found = embed_patches(np.array([[[[255, 0]]]], np.uint8), params)
    assert found.ravel().tolist() == [0, 32767, -32767]


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_layer_norm_is_within_one_step_on_many_rows(kind):
    """Rows of every size of value and of spread, of the stream's int16 and of sums."""
    rng = np.random.default_rng(6)
    largest = {np.int16: 32767, np.int32: 65534}[kind]
    for h in (2, 5, 16, 48):
        gamma, beta = rng.normal(1, 0.5, h), rng.normal(0, 0.5, h)
        in_scale, out_scale, rows = 1e-3, 10 ** rng.uniform(-4, -2), MANY // 8
        params = NormParams.from_float(gamma, beta, 1e-5, in_scale=in_scale, out_scale=out_scale)
        spread, middle = (2.0 ** rng.uniform(-1, 15, (rows, 1)) for _ in range(2))
        v = np.clip(rng.normal(0, 1, (rows, h)) * spread + middle, -largest, largest).astype(kind)
        x = v.astype(np.longdouble) * in_scale
        centred = x - x.mean(-1, keepdims=True)
        eps = params.epsilon * in_scale**2 / h**3
        real = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gamma + beta) / out_scale
        assert abs(layer_norm(v, params) - np.clip(real, -32767, 32767)).max() <= 1.0
