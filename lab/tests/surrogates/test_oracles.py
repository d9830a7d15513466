"""Each method against its measure: another implementation, its table, its float form, its bound."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from lab.tests.surrogates.conftest import SCALES, calibrated, data

import hccs
import hccs_lab.surrogates as surrogates
from hccs.reference.softmax import softmax as reference_softmax
from hccs_lab.surrogates import aie4ml_exp, ibert, iron_bf16, ita, sas, softermax, vitis_bf16
from hccs_lab.surrogates.rows import requantised, to_bfloat16
from tests.conftest import logits

X = logits(seed=1, shape=(2, 3, 50, 64))


def test_softmax_is_scipy_like():
    x, valid = data()
    z = np.where(valid, x * SCALES[:, None, None], -np.inf)
    expected = np.exp(z - np.logaddexp.reduce(z, axis=-1, keepdims=True))
    np.testing.assert_allclose(
        surrogates.get("softmax")(x, SCALES, valid).probabilities, expected, rtol=1e-12
    )


@pytest.mark.parametrize("mode", list(hccs.Mode))
def test_hccs_is_the_reference(mode):
    x, valid = data()
    params = {"B": [700, 500, 819], "S": [9, 3, 20], "D": [70, 127, 40]}
    result = surrogates.get("hccs")(x, SCALES, valid, **params, mode=mode.value)
    expected = reference_softmax(x, hccs.HeadParams(**params), mode, valid)
    np.testing.assert_array_equal(result.integers, expected)
    assert result.unit == 1 / mode.T


@pytest.mark.parametrize("mode", list(hccs.Mode))
@pytest.mark.parametrize("name", ["hccs_two_lines", "hccs_two_lines_uint8"])
def test_two_lines_are_the_reference(name, mode):
    x, valid = data()
    shift = 2 * name.endswith("uint8")
    params = {"B": [1023, 900, 819], "S": [4, 0, 3], "D": [50, 127, 40], "S2": [41, 7, 30], "D2": [20, 99, 9]}
    result = surrogates.get(name)(x, SCALES, valid, **params, f=shift, mode=mode.value)
    expected = reference_softmax(x, hccs.HeadParams(**params, f=shift), mode, valid)
    np.testing.assert_array_equal(result.integers, expected)


# --- I-BERT -------------------------------------------------------------------------------------------------


def int_softmax(x, scale, dtype):
    """The integers of transformers' IntSoftmax; in training mode its 16-bit range is that of the data."""
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("transformers.models.ibert.quant_modules")
    oracle = modules.IntSoftmax(8, quant_mode=True).to(dtype).train()
    step = torch.tensor([scale], dtype=dtype)
    p, unit = oracle(torch.tensor(x, dtype=dtype) * step, step)
    assert unit == 1 / 256
    return np.rint(p.detach().double().numpy() * 256)


@pytest.mark.parametrize("scale", [2.0**-exponent for exponent in range(9)])
def test_ibert_equals_transformers_where_float_division_by_the_scale_is_exact(scale):
    torch = pytest.importorskip("torch")
    # But for e16 that lie exactly between two integers: which way they go is the rounding of a multiplier
    # that the oracle takes in float32.
    difference = ibert.SURROGATE(X, scale).integers - int_softmax(X, scale, torch.float64)
    assert abs(difference).max() <= 1
    assert (difference != 0).mean() < 0.0003


@pytest.mark.parametrize("scale", [0.013, 0.05, 0.1, 0.2])
def test_ibert_equals_transformers_but_for_float_noise(scale):
    # The oracle divides x * scale by scale in float32, and floors what comes.
    torch = pytest.importorskip("torch")
    difference = ibert.SURROGATE(X, scale).integers - int_softmax(X, scale, torch.float32)
    assert abs(difference).max() <= 2
    assert (difference != 0).mean() < 0.003


# --- IntAttention -------------------------------------------------------------------------------------------


def test_index_softmax_has_the_published_table():
    published = "255 206 167 135 109 88 71 57 46 38 30 25 20 16 13 10 8 7 6 4 4 3 2 2 2 1 1 1 1 1 0 0"
    method = surrogates.get("index_softmax")
    lut = method.constants(np.array(0.1), c=np.array(6.6), form="rounded")["lut"]
    assert lut.tolist() == [int(entry) for entry in published.split()]


def test_index_softmax_by_hand():
    # t = round(6.6/0.1) = 66; distances 0, 10, 66 and 200 have the indices 0, round(4.7) = 5, 31 and 31.
    x = np.array([100, 90, 34, -100], np.int8)
    assert surrogates.get("index_softmax")(x, 0.1).integers.tolist() == [
        round(255 * 255 / 343),
        round(255 * 88 / 343),
        0,
        0,
    ]


# --- ITA ----------------------------------------------------------------------------------------------------


def test_ita_one_pass_by_its_equations():
    x = X[0, 0, 0].astype(int)
    shift = (x.max() - x + 16) >> 5
    inverse = 255 * 256 // sum(256 >> s for s in shift)
    expected = [inverse >> s for s in shift]
    assert ita.SURROGATE(X[0, 0, 0], ita.STEP).integers.tolist() == expected


@pytest.mark.parametrize("columns", [16, 40, 64])
def test_streaming_ita_stays_within_its_stated_error_of_one_pass(columns):
    x = X[..., :columns].astype(np.int64)
    valid = np.ones(x.shape, bool)
    tops = np.maximum.accumulate(
        [x[..., start : start + 16].max(-1) for start in range(0, columns, 16)], axis=0
    )
    moves = (np.diff(tops, axis=0) > 0).sum(0) if len(tops) > 1 else np.zeros(tops.shape[1:], int)
    shift = (x.max(-1, keepdims=True) - x + 16) >> 5
    once = (256 >> shift).sum(-1)
    streamed = ita.streamed_sum(x, valid)[..., 0]
    np.testing.assert_array_equal(streamed[moves == 0], once[moves == 0])
    assert (streamed <= once * 2.0**moves).all()
    assert (streamed >= once / 2.0**moves - moves).all()
    if columns > 16:
        assert moves.max() >= 2 and (streamed != once).any()


def test_streaming_ita_loses_little_on_average():
    one_pass, streaming = (
        ita.SURROGATE(X, ita.STEP, form=form).probabilities for form in ("one_pass", "streaming")
    )
    assert abs(one_pass - streaming).mean() < 0.002


# --- Softermax ----------------------------------------------------------------------------------------------


def test_softermax_is_base_two_softmax_within_its_steps():
    x, valid = data()
    method = softermax.SURROGATE
    multiplier = method.constants(SCALES, np.full(3, softermax.LOG2_E))["multiplier"]
    y = requantised(x.astype(np.int64), multiplier[:, None, None]) / 4
    power = np.where(valid, 2.0**y, 0)
    expected = power / power.sum(-1, keepdims=True)
    error = method(x, SCALES, valid).probabilities - expected
    # The reciprocal is cut to 7 bits and its pieces are up to 1.3 % high; the sum, at least 1/2, is cut to 6
    # bits in each of two slices; the output is cut to 7 bits.
    assert (error >= -0.016 * expected - 1 / 128).all()
    assert (error <= (0.013 + 2 * 2 / 64) * expected).all()


@pytest.mark.parametrize("D", [1, 38, 63, 64, 65, 100, 1000, 65535])
def test_softermax_reciprocal(D):
    mantissa, exponent = (int(part[0]) for part in softermax.inverse(np.array([D])))
    assert mantissa / 128 / 2**exponent == pytest.approx(1 / D, rel=0.016)


# --- ConSmax ------------------------------------------------------------------------------------------------


def test_consmax_tables_give_the_float_form():
    x, valid = data()
    method, params = calibrated("consmax", x, SCALES, valid)
    expected = np.exp(x * SCALES[:, None, None] - params["beta"][:, None, None])
    expected = np.where(valid, expected / params["gamma"][:, None, None], 0)
    # Two table entries and the product are rounded to 11 bits; below 2^-14 float16 loses bits.
    np.testing.assert_allclose(
        method(x, SCALES, valid, **params).probabilities, expected, rtol=3 * 2.0**-11, atol=2.0**-23
    )


# --- the simplex --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "entmax"])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_projections_equal_the_entmax_package(name, alpha):
    torch = pytest.importorskip("torch")
    entmax = pytest.importorskip("entmax")
    x, valid = data()
    z = torch.tensor(np.where(valid, x * SCALES[:, None, None], -1e6))
    if name == "entmax":
        params, expected = {"alpha": alpha}, entmax.entmax_bisect(z, alpha, dim=-1, n_iter=60)
    else:
        params, expected = {}, getattr(entmax, name)(z, dim=-1)
    found = surrogates.get(name)(x, SCALES, valid, **params).probabilities
    np.testing.assert_allclose(found, np.where(valid, expected.numpy(), 0), atol=2e-7)


# --- TurboAttention -----------------------------------------------------------------------------------------


def test_sas_exponential_error():
    x = np.linspace(0, 6, 60001)
    assert (abs(sas.exponential(x) / np.exp(-x) - 1) < 0.0017).all()
    assert (sas.exponential(np.array([6.001, 40.0])) == 0).all()


# --- AMD ----------------------------------------------------------------------------------------------------


def bfloat16_values(lowest):
    return -np.unique(to_bfloat16(np.linspace(0, -lowest, 200_001))).astype(np.float64)


def test_bfloat16_rounds_as_torch_does():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(0, 1, 10_000).astype(np.float32) * 10.0 ** np.arange(
        -20, 20, 0.004
    )
    expected = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(to_bfloat16(values), expected)


def test_vitis_exponential_error():
    # 1 + f exceeds 2^f by up to 6.15 %; 185 for 184.66 takes 0.18 % of |y| and the floor 1/128 at most.
    y = bfloat16_values(-20)
    ratio = vitis_bf16.exponential(y) / np.exp(y) - 1
    assert ratio.max() < 0.062
    assert (ratio > -(1 / 128 + 0.0019 * -y)).all()
    assert vitis_bf16.exponential(np.zeros(1)) == 1
    assert vitis_bf16.exponential(np.array([-100.0])) == 0


@pytest.mark.parametrize("engine", iron_bf16.ENGINES)
def test_iron_is_softmax_within_bfloat16(engine):
    x, valid = data()
    z = to_bfloat16(x * SCALES[:, None, None]).astype(np.float64)
    power = np.where(valid, np.exp(z - np.where(valid, z, -np.inf).max(-1, keepdims=True)), 0)
    expected = power / power.sum(-1, keepdims=True)
    found = iron_bf16.SURROGATE(x, SCALES, valid, engine=engine).probabilities
    seen = expected > 1e-6
    # Five roundings of 2^-8; AIE-ML rounds the distance to 2^-8 of itself and cuts it to 1/256; AIE-MLv2's
    # log2 e is 0.18 % high.
    bound = 5 * 2.0**-8 + 1 / 256 + 2.0**-8 * -np.log(power[seen])
    assert (abs(found[seen] / expected[seen] - 1) < bound).all()


def test_iron_by_hand_in_torch():
    # -1.25 = -2 + 192/256: the entries exp(-2) and exp(0.75).
    torch = pytest.importorskip("torch")
    bf16 = [torch.tensor(value).exp().to(torch.bfloat16) for value in (-2.0, 0.75)]
    e = torch.stack([torch.tensor(1.0, dtype=torch.bfloat16), bf16[0] * bf16[1]])
    expected = e * (1 / e.float().sum()).to(torch.bfloat16)
    found = iron_bf16.SURROGATE(np.array([0, -10], np.int8), 0.125).probabilities
    np.testing.assert_array_equal(found, expected.double().numpy())


def test_iron_tables_hold_the_vendors_bits():
    """Entries of exp_ilut and exp_flut in mlir-aie: exp(0..7), exp(-8..-1), and exp(f/256) at both ends."""
    bits = {"whole": iron_bf16.INTEGER, "fraction": iron_bf16.FRACTION}
    bits = {name: (table.view(np.uint32) >> 16).tolist() for name, table in bits.items()}
    assert bits["whole"][128:136] == [16256, 16430, 16620, 16801, 16986, 17172, 17354, 17545]
    assert bits["whole"][120:128] == [14768, 14959, 15138, 15325, 15510, 15692, 15883, 16060]
    assert bits["fraction"][:8] == [16256, 16257, 16257, 16258, 16258, 16259, 16259, 16260]
    assert bits["fraction"][-4:] == [16427, 16428, 16429, 16429]


# --- aie4ml -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kq", [1, 7, 37, 128])
def test_aie4ml_exponential_error(kq):
    d = np.arange(256)
    z = d * kq / 256
    error = aie4ml_exp.weights(d, kq=np.array(kq)) / 2.0**14 - 2.0**-z
    # The polynomial is within 0.0020 of 2^-f; two shifts floor, and one more by whole octaves.
    assert abs(error).max() < 0.0021
    assert (abs(error) < 0.0021 * 2.0 ** -np.floor(z) + 2.0**-14).all()


def test_aie4ml_constants_are_those_of_the_package():
    package = pytest.importorskip("aie4ml")
    source = Path(package.__file__).parent / "templates/firmware/variants/softmax/parameters.h.jinja"
    text = source.read_text()
    found = {name: int(re.search(rf"EXP_{name}\s*=\s*(-?\d+)", text)[1]) for name in ("A2", "B1", "C0", "ZF")}
    assert found == {"A2": aie4ml_exp.A2, "B1": aie4ml_exp.B1, "C0": aie4ml_exp.C0, "ZF": 8}
    family = importlib.import_module("aie4ml.op_impls.families.softmax.softmax")
    assert family.EXP_KQ_MAX == aie4ml_exp.LARGEST_KQ
    for scale in (0.01, 0.05, 0.0625, 0.2, 0.3):
        assert aie4ml_exp.constants(np.array(scale))["kq"] == family._exp_kq(scale)


# --- ReLA ---------------------------------------------------------------------------------------------------


def test_rela_scores_by_hand():
    x = np.array([[30, 10, 0, -50], [-1, -2, -3, -4]], np.int8)
    found = surrogates.get("rela")(x, 0.1).probabilities
    np.testing.assert_allclose(found, [[0.75, 0.25, 0, 0], [0, 0, 0, 0]])
