"""Methods whose authors published programs: what those programs put out, and the equations in other words."""

import ctypes
import shutil
import subprocess
from fractions import Fraction
from math import floor, log
from pathlib import Path

import numpy as np
import pytest
from lab.tests.surrogates.conftest import SCALES, data

import hccs_lab.surrogates as surrogates
from hccs_lab.surrogates import e2softmax, exaq, ibert, log_int_softmax, shiftmax, softmax_s8
from hccs_lab.surrogates.index_softmax import FORMS
from hccs_lab.surrogates.rows import divided_to_even, leading_bit
from tests.conftest import logits

X = logits(seed=1, shape=(2, 3, 50, 64))
ROW = np.array([100, 90, 81, 64, 40, 12, -30, -100], np.int8)

# (method, options, scale): the integers of ROW. In the order below from I-ViT's IntSoftmax, FQ-ViT's
# QIntSoftmax in 4 bits, IntAttention's idx_softmax in 5, CMSIS-NN's arm_softmax_s8 and arm_softmax_s8_s16.
PUBLISHED = {
    ("shiftmax", (), 2**-6): [30, 27, 24, 18, 12, 7, 4, 1],
    ("shiftmax", (), 2**-5): [43, 33, 24, 15, 7, 2, 0, 0],
    ("shiftmax", (), 2**-4): [62, 35, 20, 7, 1, 0, 0, 0],
    ("shiftmax", (), 2**-3): [89, 28, 9, 1, 0, 0, 0, 0],
    ("log_int_softmax", (), 2**-6): [8192, 8192, 8192, 4096, 4096, 2048, 1024, 512],
    ("log_int_softmax", (), 2**-5): [8192, 8192, 8192, 4096, 2048, 1024, 256, 32],
    ("log_int_softmax", (), 2**-4): [16384, 8192, 4096, 2048, 512, 128, 8, 0],
    ("log_int_softmax", (), 2**-3): [32768, 8192, 2048, 512, 32, 1, 0, 0],
    ("index_softmax", (("form", "simulation"),), 2**-6): [58, 58, 47, 38, 25, 16, 9, 3],
    ("index_softmax", (("form", "simulation"),), 2**-5): [83, 67, 54, 29, 15, 6, 1, 0],
    ("index_softmax", (("form", "simulation"),), 2**-4): [119, 78, 41, 14, 3, 0, 0, 0],
    ("index_softmax", (("form", "simulation"),), 2**-3): [175, 60, 17, 2, 0, 0, 0, 0],
    ("softmax_s8", (), 0.05): [115, 70, 45, 19, 6, 1, 0, 0],
    ("softmax_s8", (), 0.125): [184, 53, 17, 2, 0, 0, 0, 0],
    ("softmax_s8", (("output", "int16"),), 0.05): [29492, 17888, 11406, 4875, 1468, 362, 44, 1],
    ("softmax_s8", (("output", "int16"),), 0.125): [47108, 13497, 4382, 523, 26, 1, 0, 0],
}


@pytest.mark.parametrize(("name", "options", "scale"), PUBLISHED, ids=str)
def test_every_integer_is_that_of_the_authors_program(name, options, scale):
    found = surrogates.get(name)(ROW, scale, **dict(options)).integers
    assert found.tolist() == PUBLISHED[name, options, scale]


def test_whole_numbers_divide_and_have_a_leading_bit():
    a, b = np.arange(1, 400)[:, None], np.arange(1, 50)
    expected = [[round(Fraction(int(i), int(j))) for j in b] for i in a[:, 0]]
    np.testing.assert_array_equal(divided_to_even(a, b), expected)
    assert leading_bit(a[:, 0]).tolist() == [int(i).bit_length() - 1 for i in a[:, 0]]
    assert leading_bit(np.array([1 << 40, (1 << 62) - 1])).tolist() == [40, 61]


# --- Shiftmax -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0041, 0.013, 0.1, 0.7])
def test_shiftmax_by_its_equations_in_fractions(scale):
    for values in X[0, 0, :5].tolist():
        x0 = floor(-1 / Fraction(scale))
        e = []
        for x in (Fraction(value - max(values)) for value in values):
            y = max(x + floor(x / 2) - floor(x / 16), 15 * x0)
            q = floor(y / x0)
            e.append(floor(((y - x0 * q) / 2 - x0) * 2 ** (15 - q)))
        factor = (2**31 - 1) // min(sum(e), 2**31 - 1)
        expected = [floor(Fraction(value * factor, 2**24)) for value in e]
        assert shiftmax.SURROGATE(np.array(values, np.int8), scale).integers.tolist() == expected


@pytest.mark.parametrize("scale", [0.01, 0.1, 0.25])
def test_shiftmax_exponential_error(scale):
    # 1 + f/2 exceeds 2^f by up to 6.15 %; both floors together move x by less than a step; an octave is
    # 1/scale rounded up, and log2 e is 1.4375.
    d = np.arange(256)
    x0 = shiftmax.constants(np.array(scale))["x0"]
    e = shiftmax.weights(d, x0) / -(x0 << 15)
    octaves = d * scale / log(2)
    seen = octaves < 10
    slack = 1 / -x0 + octaves * (1 - 1.4375 * log(2) / (-x0 * scale))
    error = np.log2(e[seen]) + octaves[seen]
    assert (error < slack[seen] + np.log2(1.0616)).all()
    assert (error > -1 / -x0 - 0.01).all()


def test_shiftmax_of_too_fine_a_scale_loses_its_reciprocal():
    # 64 columns of 2^15 / 0.0005 pass 2^31: the factor is 1, and p = e >> 24.
    found = shiftmax.SURROGATE(np.zeros(64, np.int8), 0.0005).integers
    assert (found == (2000 << 15) >> 24).all()


# --- Log-Int-Softmax ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0**-exponent for exponent in range(1, 9)])
def test_log_int_softmax_rounds_the_exponentials_of_transformers(scale):
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("transformers.models.ibert.quant_modules")
    x = torch.tensor(X - X.max(-1, keepdims=True).astype(np.int64), dtype=torch.float64)
    oracle = modules.IntSoftmax(8, quant_mode=True).double()
    e = oracle.int_exp(x, torch.tensor([scale], dtype=torch.float64))[0].detach().numpy()
    with np.errstate(divide="ignore"):
        n = np.rint(e.sum(-1, keepdims=True) / e)
    code = np.searchsorted(1.5 * 2.0 ** np.arange(40), n, side="right")
    expected = np.where(code <= 15, 2.0**-code, 0)
    np.testing.assert_array_equal(log_int_softmax.SURROGATE(X, scale).probabilities, expected)


@pytest.mark.parametrize("scale", [0.0004, 0.002, 0.05, 0.2])
def test_log_int_softmax_stays_within_its_stated_factor(scale):
    made = ibert.constants(np.array(scale))
    value, q = ibert.polynomial(
        X.max(-1, keepdims=True).astype(np.int64) - X, made["x0"], made["b"], made["c"]
    )
    e = value * 2.0**-q
    p = log_int_softmax.SURROGATE(X, scale).probabilities
    ratio = p / (e / e.sum(-1, keepdims=True))
    assert (ratio[p > 0] >= 0.624).all() and (ratio[p > 0] <= 1.501).all()
    # 2^-15 is the least output, so that what is 0 was less than two thirds of it.
    assert (e / e.sum(-1, keepdims=True))[p == 0].max(initial=0) < 2.0**-15 / 1.49


# --- softmax_s8 ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The C function that microcontrollers are measured with, on one row."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("softmax_s8")
    source, library = folder / "row.c", folder / "row.so"
    source.write_text(
        '#include "softmax_s8.h"\n'
        "void row(const int8_t* x, int n, int32_t m, int s, int32_t l, int8_t* y) "
        "{ softmax_s8(x, n, m, s, l, y); }\n"
    )
    include = f"-I{Path(__file__).parents[3] / 'benchmarks/mcu'}"
    subprocess.run(["cc", "-std=c99", "-O1", "-shared", "-fPIC", include, "-o", library, source], check=True)
    return ctypes.CDLL(str(library)).row


@pytest.mark.parametrize("scale", [0.0021, 0.05, 0.0625, 0.11, 0.37, 1.3])
def test_softmax_s8_is_bit_for_bit_the_c(compiled, scale):
    made = softmax_s8.constants(np.array(scale), output="int8")
    constants = [int(made["multiplier"]), int(made["shift"]), -int(made["radius"])]
    for columns in (1, 2, 33, 400):
        for x in logits(seed=columns, shape=(20, columns)):
            y = np.zeros(columns, np.int8)
            pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (np.ascontiguousarray(x), y)]
            compiled(pointers[0], columns, *constants, pointers[1])
            found = softmax_s8.SURROGATE(x, scale).integers
            np.testing.assert_array_equal(found, y.astype(int) + 128)


def test_softmax_s8_constants_are_those_of_the_runtimes():
    # 0.05 * 2^26 = 0.8 * 2^22; 31 * 2^26 / 2^22 steps are within the range of Q5.26.
    made = softmax_s8.constants(np.array([0.05, 0.5, 1 - 2.0**-40]), output="int8")
    assert made["multiplier"].tolist() == [round(0.8 * 2**31), 1 << 30, 1 << 30]
    assert made["shift"].tolist() == [22, 26, 27]
    assert made["radius"].tolist() == [496, 31, 15]


@pytest.mark.parametrize("scale", [0.01, 0.05, 0.2])
def test_softmax_s8_is_softmax_but_for_its_roundings(scale):
    p = surrogates.get("softmax")(X, scale).probabilities
    for output, one in (("int8", 256), ("int16", 65536)):
        found = softmax_s8.SURROGATE(X, scale, output=output).integers
        # Half a step, and the sum's: each of 64 exponentials is rounded to 2^-19, the largest being 1.
        bound = 0.51 + p * one * 64 * 2.0**-20
        assert (abs(found - np.minimum(one * p, one - 1)) < bound + 0.02).all()


# --- EXAQ ---------------------------------------------------------------------------------------------------

# (bits, span) of sigma = 2 and a scale of 2^-4: the probabilities of ROW by the authors' quant_dequant.
PUBLISHED_EXAQ = {
    (2, 12.5): [0.415654, 0.415654, 0.074182, 0.074182, 0.013239, 0.002363, 0.002363, 0.002363],
    (2, 3.0): [0.483035, 0.177699, 0.177699, 0.065372, 0.024049, 0.024049, 0.024049, 0.024049],
    (3, 12.5): [0.493465, 0.222999, 0.222999, 0.04554, 0.0093, 0.001899, 0.001899, 0.001899],
    (4, 12.5): [0.52909, 0.239965, 0.161606, 0.049361, 0.015077, 0.002089, 0.001407, 0.001407],
}


@pytest.mark.parametrize(("bits", "span"), PUBLISHED_EXAQ)
def test_exaq_is_the_authors_quantiser_and_a_softmax(bits, span):
    found = exaq.SURROGATE(ROW, 2.0**-4, sigma=2.0, span=span, bits=bits).probabilities
    np.testing.assert_allclose(found, PUBLISHED_EXAQ[bits, span], atol=6e-7)


@pytest.mark.parametrize(("bits", "clip"), [(2, 1.66 * 1.3 + 1.85), (3, 1.75 * 1.3 + 2.06), (4, 4.5)])
def test_exaq_takes_the_nearest_level(bits, clip):
    span = 4.5 if bits == 4 else 20.0  # the rule would clip at 4.649
    x = X * 0.037
    z = np.maximum(x - x.max(-1, keepdims=True), -clip)
    levels = np.linspace(-clip, 0, 2**bits)
    nearest = levels[abs(z[..., None] - levels).argmin(-1)]
    expected = np.exp(nearest) / np.exp(nearest).sum(-1, keepdims=True)
    found = exaq.SURROGATE(X, 0.037, sigma=1.3, span=span, bits=bits).probabilities
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert len(np.unique(nearest)) == 2**bits


def test_exaq_measures_each_head():
    x, valid = data()
    params = exaq.SURROGATE.calibrate(x, SCALES, valid)
    for head, scale in enumerate(SCALES):
        z = np.where(valid[:, head], x[:, head].astype(float), -np.inf) * scale
        below = (z - z.max(-1, keepdims=True))[valid[:, head]]
        assert params["sigma"][head] == pytest.approx(below.std())
        assert params["span"][head] == pytest.approx(-below.min())
    flat = exaq.SURROGATE.calibrate(np.full((2, 3), 7, np.int8), 0.1)
    assert exaq.SURROGATE(np.full(4, 7, np.int8), 0.1, **flat).probabilities.tolist() == [0.25] * 4


# --- E2Softmax ----------------------------------------------------------------------------------------------


def test_e2softmax_constants_are_the_published():
    # 1 - f/2 with f of one bit, less what makes its mean that of 1/(1 + f) over [0, 1), which is ln 2.
    low, high = 0.818, 0.568
    assert low - high == pytest.approx(1 / 4)
    assert (low + high) / 2 == pytest.approx(log(2), abs=2e-4)
    assert (round(256 * low), round(256 * high)) == (e2softmax.LOW, e2softmax.HIGH)


def test_e2softmax_by_hand():
    # Distances of 0, 1, 2 and 20 are 0, 1.4375, 2.875 and 28.75 octaves: codes 0, 1, 3 and 15. The sum,
    # 1 + 1/2 + 1/8 and 2^-15, has s = 0 and f >= 1/2.
    x = np.array([80, 64, 48, -128 + 16 * 6], np.int8)
    assert e2softmax.SURROGATE(x[:3], 1 / 16).integers.tolist() == [145, 145 >> 1, 145 >> 3]
    # Seven in the middle of the range: sum 1 + 7/4, s = 1, f = 3/8.
    x = np.array([0, *[-24] * 7], np.int8)
    assert e2softmax.SURROGATE(x, 1 / 16).integers.tolist() == [209 >> 1, *[209 >> 3] * 7]


@pytest.mark.parametrize("scale", [0.01, 0.05, 0.13])
def test_e2softmax_error(scale):
    # The requantisation moves a distance by 1/32, each of the two floors the octaves by 1/16, and rounding by
    # half of one; 1.4375 is 0.36 % short. Codes end at 15.
    d = np.arange(256)
    w = e2softmax.weights(d, **e2softmax.constants(np.array(scale))) / 2.0**15
    octaves = d * scale / log(2)
    seen = octaves < 14
    assert (abs(np.log2(w[seen]) + octaves[seen]) < 0.5 + 1.4375 / 32 + 1 / 16 + 0.0037 * octaves[seen]).all()
    assert w.min() >= 2.0**-15
    # The division is within 1.23 and 0.81 of exact, and what it gives is cut to 2^-8.
    weights = e2softmax.weights(
        X.max(-1, keepdims=True).astype(np.int64) - X, **e2softmax.constants(np.array(scale))
    )
    exact = weights / weights.sum(-1, keepdims=True)
    found = e2softmax.SURROGATE(X, scale).probabilities
    assert (found <= 1.23 * exact).all() and (found > 0.81 * exact - 1 / 256).all()


# --- IndexSoftmax as its authors run it ---------------------------------------------------------------------


def test_index_softmax_kernel_by_hand():
    # The row of the rounded form: LUT entries 255, 88, 0, 0. F = round(255 * 256 / 343) = 190.
    x = np.array([100, 90, 34, -100], np.int8)
    found = surrogates.get("index_softmax")(x, 0.1, form="kernel").integers
    assert found.tolist() == [(255 * 190 + 128) >> 8, (88 * 190 + 128) >> 8, 0, 0]
    # A row of one is the table's first entry: F = 256.
    assert surrogates.get("index_softmax")(x[:1], 0.1, form="kernel").integers.tolist() == [255]


def test_index_softmax_forms_differ_where_they_are_said_to():
    method = surrogates.get("index_softmax")
    clips = [int(method.constants(np.array(6.6 / 62.7), c=np.array(6.6), form=form)["t"]) for form in FORMS]
    assert clips == [63, 62, 63]
    # Cutting the index moves a logit up by half an entry of the table in the mean, 0.1: all but the largest
    # gain, and the largest loses.
    rounded, simulation, kernel = (method(X, 0.05, form=form).probabilities for form in FORMS)
    top = X.max(-1, keepdims=True) == X
    assert simulation[top].mean() < 0.97 * rounded[top].mean()
    assert 0 < abs(kernel - rounded).max() < 0.02
