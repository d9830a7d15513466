"""RMSNorm, rotary positions and gated products against exact arithmetic, on random and on extreme rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hccs.errors import DataError, HccsError, ParameterError, ShapeError
from hccs.numbers.layers import LONG_ROW_LIMIT, LinearParams
from hccs.numbers.rms_norm import RmsParams
from hccs.numbers.rotary import RotateParams
from hccs.reference.layer_norm import norm_heads, rms_norm
from hccs.reference.linear import linear, linear_rows, multiply, narrow_rows
from hccs.reference.rotary import rotate

MANY = 100_000


def extreme_rows(h: int, largest: int) -> np.ndarray:
    """Constant, with one outlier, saturated, of zeros, of single steps, alternating."""
    rows = np.zeros((12, h), np.int64)
    rows[1], rows[2], rows[3], rows[4] = largest, -largest, 1, -1
    rows[5, h // 2], rows[6, 0] = largest, 1
    rows[7], rows[7, -1] = 1, largest
    rows[8], rows[8, 0] = 300, -largest
    rows[9], rows[10] = largest * (-1) ** np.arange(h), (-1) ** np.arange(h)
    rows[11] = np.linspace(-largest, largest, h)
    return rows


def real_rms(v, gamma, eps, in_scale, out_scale):
    x = v.astype(np.longdouble) * in_scale
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma / out_scale


@pytest.mark.parametrize("h", [1, 2, 7, 16, 48, 100, 576, 1024, 2048, 4096])
@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_rms_norm_is_within_one_step(h, kind):
    """Rows of every size of value; gains that outputs of the finest scale allow among them."""
    rng = np.random.default_rng(h)
    largest = {np.int16: 32767, np.int32: 65534}[kind]
    rows = max(100, MANY * 16 // (20 * h)) if h < 16 else max(60, MANY // h)
    spread = 2.0 ** rng.uniform(-1, 16, (rows, 1))
    v = np.clip(rng.normal(0, 1, (rows, h)) * spread, -largest, largest)
    v = np.concatenate([extreme_rows(h, largest), v]).astype(kind)
    for fine in (2.0**16 * 0.99, 2000.0, 100.0, 1.0):
        gamma = rng.normal(1, 0.5, h)
        out_scale, in_scale, eps = (
            abs(gamma).max() / fine,
            10 ** rng.uniform(-5, -1),
            10 ** rng.uniform(-8, -4),
        )
        params = RmsParams.from_float(gamma, eps, in_scale=in_scale, out_scale=out_scale)
        # Epsilon is rounded in steps of 2^-16 of a squared step: no row but those of a few steps sees it.
        taken = params.epsilon * in_scale**2 / h / 2**16
        assert abs(taken - eps) <= max(in_scale**2 / h / 2**16, 1e-9 * eps)
        real = np.clip(real_rms(v, gamma, taken, in_scale, out_scale), -32767, 32767)
        found = rms_norm(v, params)
        assert found.dtype == np.int16
        assert abs(found - real).max() <= 1.0


def test_rms_norm_of_zeros_is_zero_and_signs_are_kept():
    params = RmsParams.from_float(np.ones(8), 1e-6, in_scale=1e-3, out_scale=1e-4)
    rows = np.stack([np.zeros(8), np.arange(8) * 1000]).astype(np.int16)
    found = rms_norm(rows, params)
    assert not found[0].any() and np.array_equal(rms_norm(-rows, params), -found)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"gain": np.ones(3, np.int64)}, "gains int32"),
        ({"gain": np.ones(5000, np.int32)}, "1 to 4096 channels"),
        ({"gain": np.full(4, 2**23, np.int32)}, r"\|gain\| < 2\^23"),
        ({"gain_bits": 6}, "7 to 16 bits"),
        ({"epsilon": 0}, "1 <= epsilon"),
    ],
)
def test_rms_constants_out_of_range_are_refused(change, match):
    given = {"gain": np.ones(4, np.int32), "gain_bits": 10, "epsilon": 1, **change}
    with pytest.raises(HccsError, match=match):
        RmsParams(**given)


def test_rms_scales_out_of_range_are_refused():
    with pytest.raises(ParameterError, match=r"below 2\^16"):
        RmsParams.from_float(np.ones(4), 1e-5, in_scale=1.0, out_scale=2.0**-17)
    with pytest.raises(DataError, match="finite gamma"):
        RmsParams.from_float(np.array([np.nan]), 1e-5, in_scale=1.0, out_scale=1.0)


def tables(positions: int, pairs: int, base: float = 10000.0):
    angle = np.arange(positions)[:, None] * base ** (-np.arange(pairs) / max(pairs, 1))
    return np.cos(angle), np.sin(angle)


def rotated(x, cosine, sine, heads, kv_heads):
    """The real rotation of rows [n, channels], as transformers writes it: x * cos + rotate_half(x) * sin."""
    n = len(x)
    made = x.astype(np.float64).reshape(n, heads + 2 * kv_heads, -1).copy()
    pairs = cosine.shape[1]
    turned = made[:, : heads + kv_heads, : 2 * pairs]
    half = np.concatenate([-turned[..., pairs:], turned[..., :pairs]], -1)
    cos, sin = (np.concatenate([part, part], -1)[:, None] for part in (cosine, sine))
    made[:, : heads + kv_heads, : 2 * pairs] = turned * cos + half * sin
    return made.reshape(x.shape)


def test_rotation_is_within_half_a_step_and_the_tables_error():
    rng = np.random.default_rng(0)
    checked, worst = 0, 0.0
    for case in range(60):
        kv_heads, group, pairs = (int(n) for n in rng.integers(1, [4, 5, 33]))
        heads, rest = kv_heads * group, int(rng.integers(0, 5)) * (case % 3 == 0)
        n, width = 64, (heads + 2 * kv_heads) * (2 * pairs + rest)
        cosine, sine = tables(2048, pairs)
        peak = 2.0 ** rng.uniform(7, 15, heads + 2 * kv_heads)  # int16 steps that fill int8
        params = RotateParams.from_float(cosine, sine, in_scale=1.0, out_scale=peak / 127, heads=heads)
        assert params.kv_heads == kv_heads
        reach = np.repeat(peak, 2 * pairs + rest)
        x = np.clip(rng.normal(0, 0.4, (n, width)), -1, 1) * reach
        x[8:16] = rng.choice([-1, 0, 1], (8, width)) * reach
        x[:8] = rng.choice([-32767, 0, 32767], (8, width))
        x = np.rint(x).astype(np.int16)
        positions = rng.integers(0, 2048, n)
        step = reach / 127
        exact = rotated(x, cosine[positions], sine[positions], heads, kv_heads) / step
        found = rotate(x[None], positions[None], params)[0]
        assert found.dtype == np.int8
        kept = abs(exact) <= 127
        # Half a step of a table entry in each of two products, and half a step of a multiplier of 15 bits.
        bound = np.broadcast_to(0.5 + 2 * 32767 * 0.5 / 32767 / step + 127 * 2.0**-14, exact.shape)
        assert (abs(found - exact)[kept] <= bound[kept]).all()
        assert (found[~kept] == 127 * np.sign(exact[~kept])).all()
        kept[:8] = (
            False  # what int8 cannot hold: the error of a sine counts as often as the input is too large
        )
        worst = max(worst, float(abs(found - exact)[kept].max()))
        checked += found.size
    assert checked >= MANY
    assert worst <= 0.51


def test_rotation_rounds_the_law_s_integers_once():
    """Against Python's integers, ties among them."""
    rng = np.random.default_rng(1)
    cosine, sine = (rng.integers(-32767, 32768, (3, 2)).astype(np.int16) for _ in range(2))
    multiplier = np.array([2**22, 3, 2**24 - 1, 2**15, 12345, 2**7], np.int32)
    params = RotateParams(cosine, sine, multiplier, heads=2)
    x = rng.choice([-32767, -32766, 0, 1, 32767, 2**14, 77], (50, 6 * 5)).astype(np.int16)
    x[:20] = 2 ** rng.integers(0, 15, (20, 30))
    positions = rng.integers(0, 3, 50)
    found = rotate(x, positions, params).reshape(50, 6, 5)
    for row, place in enumerate(positions):
        for head in range(6):
            own = [int(v) for v in x[row].reshape(6, 5)[head]]
            a = [v * 32767 for v in own]
            if head < 4:
                for i in range(2):
                    c, s = int(cosine[place, i]), int(sine[place, i])
                    a[i], a[i + 2] = own[i] * c - own[i + 2] * s, own[i + 2] * c + own[i] * s
            assert max(map(abs, a)) < 2**31
            exact = [round(Fraction(v * int(multiplier[head]), 2**38)) for v in a]
            assert found[row, head].tolist() == [min(max(v, -127), 127) for v in exact]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"cosine": np.zeros((4, 2), np.int32)}, "cosines int16"),
        ({"sine": np.zeros((4, 3), np.int16)}, "sines int16"),
        ({"sine": np.full((4, 2), -32768, np.int16)}, "sines int16"),
        ({"cosine": np.zeros((0, 2), np.int16)}, "cosines int16"),
        ({"heads": 0}, "heads of q"),
        ({"heads": 3}, "multipliers int32 of 3 heads"),
        ({"multiplier": np.ones(3, np.int32)}, "multipliers int32 of 2 heads"),
        ({"multiplier": np.zeros(4, np.int32)}, "multipliers from 1"),
    ],
)
def test_rotary_constants_out_of_range_are_refused(change, match):
    table = np.zeros((4, 2), np.int16)
    given = {"cosine": table, "sine": table, "multiplier": np.ones(4, np.int32), "heads": 2, **change}
    with pytest.raises((ShapeError, ParameterError), match=match):
        RotateParams(**given)


def test_rotary_scales_out_of_range_are_refused():
    cosine, sine = tables(4, 2)
    with pytest.raises(ParameterError, match="int8 steps of half an int16 step"):
        RotateParams.from_float(cosine, sine, in_scale=1.0, out_scale=np.full(3, 1e-3), heads=1)
    with pytest.raises(DataError, match="within 1"):
        RotateParams.from_float(2 * cosine, sine, in_scale=1.0, out_scale=np.ones(3), heads=1)


@pytest.mark.parametrize("limit", [32767, LONG_ROW_LIMIT, 1000])
def test_products_are_exact_and_clamped(limit):
    rng = np.random.default_rng(2)
    a, b = (
        np.clip(rng.normal(0, 1, MANY) * 2.0 ** rng.uniform(0, 15, MANY), -32767, 32767).astype(np.int16)
        for _ in range(2)
    )
    a[:6], b[:6] = [32767, -32767, 32767, 3, -3, 5], [32767, 32767, -32767, 1, 1, 1]
    for bits in (0, 1, 7, 15, 30):
        found = multiply(a, b, bits, limit)
        assert found.dtype == (np.int16 if limit <= 32767 else np.int32)
        exact = np.rint(a.astype(np.float64) * b / 2**bits)  # 31 bits over a power of two: exact in float64
        assert np.array_equal(found, np.clip(exact, -limit, limit))
        assert bits > 6 or (abs(found) == limit).any()


def test_long_rows_get_exponents_up_to_sixteen():
    rng = np.random.default_rng(3)
    x = np.clip(
        rng.normal(0, 1, (2000, 50)) * 2.0 ** rng.uniform(-1, 24, (2000, 1)), -LONG_ROW_LIMIT, LONG_ROW_LIMIT
    ).astype(np.int32)
    x[0], x[1] = 0, LONG_ROW_LIMIT
    rows = narrow_rows(x)
    exponent = rows[:, -1].astype(np.int64)
    assert exponent.min() == 0 and exponent.max() == 16
    real = x / 2.0 ** exponent[:, None]
    assert (abs(rows[:, :-1] - np.clip(real, -127, 127)) <= 0.5).all()
    assert (abs(real) < 128).all() and ((abs(real).max(1) >= 64) | (exponent == 0)).all()
    short = x[abs(x).max(1) <= 32767]
    assert np.array_equal(narrow_rows(short), narrow_rows(short.astype(np.int16)))


@pytest.mark.parametrize("limit", [127, 32767, 2**30 - 1])
def test_layers_on_long_rows_are_their_sums_requantised(limit):
    """Every exponent, multipliers from the least to the largest, sums up to the largest, in Python."""
    rng = np.random.default_rng(4)
    weight = rng.integers(-127, 128, (40, 30)).astype(np.int8)
    weight[0] = 127
    bias = rng.integers(-(2**30), 2**30, 40).astype(np.int32)
    multiplier = np.exp2(rng.uniform(7, 24, 40)).astype(np.int32)
    multiplier[:2] = 128, 2**24 - 1
    layer = LinearParams(weight, bias, multiplier, limit)
    x = rng.integers(-127, 128, (170, 31)).astype(np.int8)
    x[:, -1] = np.arange(170) % 17
    x[:17, :-1] = 127
    found = linear_rows(x, layer)
    assert found.dtype == {127: np.int8, 32767: np.int16, 2**30 - 1: np.int32}[limit]
    for row, made in zip(x.tolist(), found.tolist(), strict=True):
        e = row.pop()
        for c in range(40):
            a = sum(v * w for v, w in zip(row, weight[c].tolist(), strict=True))
            a += round(Fraction(int(bias[c]), 2**e))
            y = round(Fraction(a * int(multiplier[c]), 2 ** (23 - e)))
            assert made[c] == min(max(y, -limit), limit)


def test_scores_of_one_step_in_all_rows():
    """A vocabulary's scores: rows of all sizes against the real product, in the scores' own step."""
    rng = np.random.default_rng(5)
    weight = rng.integers(-127, 128, (20, 64)).astype(np.int8)
    multiplier = np.full(20, 2**16, np.int32)
    layer = LinearParams(weight, np.zeros(20, np.int32), multiplier, 2**30 - 1)
    x = (
        (rng.normal(0, 1, (300, 64)) * 2.0 ** rng.uniform(2, 14, (300, 1)))
        .clip(-32767, 32767)
        .astype(np.int16)
    )
    rows = narrow_rows(x)
    kept = rows[:, :-1].astype(np.int64) << rows[:, -1:].astype(np.int64)
    exact = kept @ weight.T.astype(np.int64) / 2**7
    assert (abs(linear_rows(rows, layer) - exact) <= 0.5).all()
    plain = linear(rows[:, :-1], layer)  # without exponents M counts steps of 2^-16
    assert plain.dtype == np.int32
    assert np.array_equal(plain, rows[:, :-1].astype(np.int64) @ weight.T.astype(np.int64))


@pytest.mark.parametrize(
    ("heads", "d", "rows"), [(3, 64, 20_000), (16, 8, 2_500), (1, 1, 500), (2, 128, 500)]
)
def test_each_head_is_normalised_by_itself_within_one_step(heads, d, rows):
    """100,000 heads with values of every size, extreme ones among them, and steps of their own."""
    rng = np.random.default_rng(d)
    x = rng.normal(0, 1, (rows, heads, d)) * 2.0 ** rng.uniform(-1, 16, (rows, heads, 1))
    x[:12] = extreme_rows(d, 32767)[:, None]
    x = np.clip(x, -32767, 32767).astype(np.int16)
    rest = rng.integers(-32767, 32768, (rows, 5)).astype(np.int16)
    gamma, eps = rng.normal(1, 0.5, (heads, d)), 10 ** rng.uniform(-8, -4)
    in_scale, out_scale = (10 ** rng.uniform(-4, -2, heads) for _ in range(2))
    params = [
        RmsParams.from_float(gamma[i], eps, in_scale=in_scale[i], out_scale=out_scale[i])
        for i in range(heads)
    ]
    found = norm_heads(np.concatenate([x.reshape(rows, -1), rest], axis=1), params)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found[:, heads * d :], rest)
    for i, head in enumerate(params):
        taken = head.epsilon * in_scale[i] ** 2 / d / 2**16
        real = np.clip(real_rms(x[:, i], gamma[i], taken, in_scale[i], out_scale[i]), -32767, 32767)
        assert abs(found[:, i * d : (i + 1) * d] - real).max() <= 1.0
