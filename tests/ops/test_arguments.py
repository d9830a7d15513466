"""Arguments are read in one place: the same `valid`, masked arrays and refusals wherever logits are taken."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs import errors
from hccs.calibration import HeadStatistics, LogitRange, quantise
from hccs.ops import arguments
from hccs.reference.softmax import softmax as reference_softmax
from hccs_aie import emulator
from hccs_lab import surrogates
from tests.conftest import logits

THETA = hccs.HeadParams(444, 11, 40)
X = logits(1, (2, 3, 4, 64))
REQUANT = hccs.Requant(hccs.FixedPoint(1, 1))


def statistics() -> HeadStatistics:
    return HeadStatistics(shape=(2, 3), n=64)


def attention(valid):
    q = np.zeros((2, 3, 4, 8), np.int8)
    k = np.zeros((2, 3, 64, 8), np.int8)
    return hccs.attention(q, k, k, THETA, REQUANT, valid=valid)


def float_logits(valid):
    torch = pytest.importorskip("torch")
    from hccs.nn.functional import hccs_softmax

    return hccs_softmax(torch.from_numpy(X).float(), THETA, 1.0, valid=torch.as_tensor(valid))


READERS = {
    "softmax": lambda valid: hccs.softmax(X, THETA, valid=valid),
    "attention": attention,
    "float logits": float_logits,
    "statistics": lambda valid: statistics().update(X, valid),
    "range": lambda valid: LogitRange(shape=(2, 3)).update(X.astype(np.float32), valid),
    "quantise": lambda valid: quantise(X.astype(np.float32), 1.0, valid),
    "surrogate": lambda valid: surrogates.get("ibert")(X, 0.1, valid),
    "emulator": lambda valid: emulator.softmax(X, THETA, lengths=valid),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("valid", "error", "says"),
    [
        (np.zeros((4, 64)), errors.DtypeError, "valid to be booleans or integer lengths; got dtype"),
        (
            np.ones((5, 64), bool),
            errors.MaskError,
            r"a mask that broadcasts to .* = \(2, 3, 4, 64\); got shape",
        ),
        (
            np.ones(5, int),
            errors.MaskError,
            r"row lengths that broadcast to .* = \(2, 3, 4\); got shape \(5,\)",
        ),
        (
            np.array([1, 65, 3, 4]),
            errors.MaskError,
            "row lengths between 0 and 64 columns; got lengths from 1 to",
        ),
        (
            np.array([[[-1]]]),
            errors.MaskError,
            "row lengths between 0 and 64 columns; got lengths from -1 to -1",
        ),
    ],
    ids=["floats", "mask", "lengths", "beyond", "negative"],
)
def test_every_reader_of_valid_refuses_alike(reader, valid, error, says):
    with pytest.raises(error, match=says):
        READERS[reader](valid)


@pytest.mark.parametrize("reader", [name for name in READERS if name != "float logits"])
def test_a_masked_valid_is_refused(reader):
    with pytest.raises(errors.DtypeError, match="valid without a mask of its own; got a masked array"):
        READERS[reader](np.ma.masked_array(np.ones(4, int), [0, 1, 0, 0]))


# --- masked arrays ------------------------------------------------------------------------------------------

HIDDEN = np.random.default_rng(2).random(X.shape) < 0.3
MASKED = np.ma.masked_array(X, HIDDEN)
LENGTHS = np.random.default_rng(3).integers(0, 65, (2, 1, 4))
MASK = np.random.default_rng(4).random((4, 64)) < 0.6
SHOWN = {
    "alone": (None, ~HIDDEN),
    "with a mask": (MASK, ~HIDDEN & MASK),
    "with lengths": (LENGTHS, ~HIDDEN & (np.arange(64) < LENGTHS[..., None])),
}


@pytest.mark.parametrize("case", SHOWN)
def test_softmax_leaves_out_what_a_masked_array_masks(case):
    valid, shown = SHOWN[case]
    found = hccs.softmax(MASKED, THETA, "u8_div", valid)
    np.testing.assert_array_equal(found, reference_softmax(X, THETA, "u8_div", shown))
    assert type(found) is np.ndarray


@pytest.mark.parametrize("case", SHOWN)
def test_statistics_leave_out_what_a_masked_array_masks(case):
    valid, shown = SHOWN[case]
    found, expected = statistics(), statistics()
    found.update(MASKED, valid)
    expected.update(X, shown)
    assert found == expected


def test_ranges_leave_out_what_a_masked_array_masks():
    z = np.where(HIDDEN, np.float32(1e30), X.astype(np.float32) / 16)
    found, expected = LogitRange(shape=(2, 3)), LogitRange(shape=(2, 3))
    found.update(np.ma.masked_array(z, HIDDEN))
    expected.update(z, ~HIDDEN)
    np.testing.assert_array_equal(found.max_abs, expected.max_abs)
    assert found.max_abs.max() < 10


def test_quantising_and_surrogates_leave_out_what_a_masked_array_masks():
    z = np.ma.masked_array([[0.5, np.nan, 1.5]], [[0, 1, 0]])
    assert quantise(z, 0.5).tolist() == [[1, 0, 3]]
    method = surrogates.get("ibert")
    np.testing.assert_array_equal(method(MASKED, 0.1).probabilities, method(X, 0.1, ~HIDDEN).probabilities)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_masked_operands_are_refused(name):
    given = {key: np.zeros((1, 4, 8), np.int8) for key in "qkv"}
    given[name] = np.ma.masked_array(given[name], True)
    with pytest.raises(errors.DtypeError, match=f"{name} without a mask of its own; got a masked array"):
        hccs.attention(*given.values(), THETA, REQUANT)


def test_a_masked_out_is_refused():
    with pytest.raises(errors.DtypeError, match="out to be a NumPy array of dtype int16; got MaskedArray"):
        hccs.softmax(X, THETA, out=np.ma.zeros(X.shape, np.int16))


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -1, 4097, 2**31, 2**63, True, 2.0, "2"], ids=repr)
@pytest.mark.parametrize("operator", ["softmax", "attention"])
def test_threads_that_are_no_number_of_threads(operator, threads):
    k = np.zeros((1, 4, 8), np.int8)
    with pytest.raises(errors.ParameterError, match=r"threads to be an integer from 1 to 4096; got"):
        if operator == "softmax":
            hccs.softmax(X, THETA, threads=threads)
        else:
            hccs.attention(k, k, k, THETA, REQUANT, threads=threads)


def test_threads_may_be_any_integer_type():
    np.testing.assert_array_equal(hccs.softmax(X, THETA, threads=np.int64(2)), hccs.softmax(X, THETA))


def test_attention_says_that_it_takes_no_array_to_write_into():
    k = np.zeros((1, 4, 8), np.int8)
    with pytest.raises(errors.ParameterError, match=r"got an array of dtype float32.*writes into no array"):
        hccs.attention(k, k, k, THETA, REQUANT, out=np.zeros((1, 4, 8), np.float32))


@pytest.mark.parametrize(
    "values", [[[300, 5, 1000]], [[300.0, np.nan, 4.0]], [[2**32 + 300, 5, 40]]], ids=str
)
def test_numbers_that_no_integers_could_run_are_no_theta(values):
    with pytest.raises(errors.ParameterError):
        arguments.heads_of(np.array(values), 64)


def test_native_numbers_are_those_of_the_arguments():
    from hccs.backends.cpu import codes

    assert codes.MASKING == (arguments.NO_MASK, arguments.LENGTHS, arguments.MASK)
    assert [*codes.MODES] == [*hccs.Mode]
    assert codes.OUTPUTS.keys() <= {*hccs.ops.attention.OUTPUTS}


def test_lengths_of_the_host_are_checked_against_the_keys(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(arguments, "device_of", lambda x: "cuda")
    q = torch.zeros(2, 8, 64, dtype=torch.int8, device="meta")  # rows of 64 columns that attend to 128 keys
    masking, moved = arguments.read_valid(np.array([100, 128]), q, 128)
    assert masking == arguments.LENGTHS and moved.device == q.device
    with pytest.raises(errors.MaskError, match="between 0 and 128 columns; got lengths from 100 to 129"):
        arguments.read_valid(np.array([100, 129]), q, 128)
