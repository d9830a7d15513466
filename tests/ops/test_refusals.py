"""Every wrong call is an `HccsError` that names what was expected, and leaves its arrays as they were."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import hccs
from hccs import errors

THETA = hccs.HeadParams(444, 11, 40)
X = np.zeros((2, 3, 4, 64), np.int8)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: hccs.softmax(X.astype(np.float32), THETA),
            errors.DtypeError,
            "x of dtype int8; got dtype float32",
        ),
        (lambda: hccs.softmax(X.tolist(), THETA), errors.DtypeError, "NumPy array"),
        (lambda: hccs.softmax(np.zeros((), np.int8), THETA), errors.ShapeError, "at least one dimension"),
        (lambda: hccs.softmax(X, (444, 11, 40)), errors.DtypeError, "hccs.HeadParams; got tuple"),
        (
            lambda: hccs.softmax(X, THETA, "i8_clb"),
            errors.ModeError,
            "'i16_div', 'i16_clb', 'u8_div', 'u8_clb', 'u8_lin'; got 'i8_clb'",
        ),
        (lambda: hccs.softmax(X, THETA, None), errors.ModeError, "got None"),
        (
            lambda: hccs.softmax(np.zeros((2, 74), np.int8), THETA),
            errors.ParameterError,
            "at most 73 columns",
        ),
        (
            lambda: hccs.softmax(X, hccs.HeadParams([444] * 4, 1, 1)),
            errors.ShapeError,
            r"\(2, 3\); got theta of shape \(4,\)",
        ),
        (
            lambda: hccs.softmax(X, THETA, valid=np.ones((5, 64), bool)),
            errors.MaskError,
            r"broadcasts to x.shape = \(2, 3, 4, 64\); got shape \(5, 64\)",
        ),
        (
            lambda: hccs.softmax(X, THETA, valid=np.ones((2, 3, 4, 64, 1), bool)),
            errors.MaskError,
            "broadcasts to x.shape",
        ),
        (
            lambda: hccs.softmax(X, THETA, valid=np.array([1, 2])),
            errors.MaskError,
            r"x.shape\[:-1\] = \(2, 3, 4\)",
        ),
        (lambda: hccs.softmax(X, THETA, valid=np.array(65)), errors.MaskError, "between 0 and 64"),
        (lambda: hccs.softmax(X, THETA, valid=np.array(-1)), errors.MaskError, "from -1 to -1"),
        (
            lambda: hccs.softmax(X, THETA, valid=np.zeros(64)),
            errors.DtypeError,
            "booleans or integer lengths",
        ),
        (
            lambda: hccs.softmax(X, THETA, out=np.zeros(X.shape, np.uint8)),
            errors.DtypeError,
            "out to be a NumPy array of dtype int16; got ndarray of uint8",
        ),
        (
            lambda: hccs.softmax(X, THETA, out=np.zeros((2, 64), np.int16)),
            errors.ShapeError,
            "out contiguous",
        ),
        (
            lambda: hccs.softmax(X, THETA, out=np.zeros((2, 3, 4, 128), np.int16)[..., ::2]),
            errors.ShapeError,
            "not contiguous",
        ),
        (
            lambda: hccs.softmax(X, THETA, "u8_div", out=X.view(np.uint8)),
            errors.ShapeError,
            "memory shared with x",
        ),
        (
            lambda: hccs.softmax(X, THETA, threads=0),
            errors.ParameterError,
            "threads to be an integer from 1 to 4096; got 0",
        ),
        (lambda: hccs.softmax(X, THETA, threads=1.5), errors.ParameterError, "got 1.5"),
    ],
)
def test_wrong_calls(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call()
    assert isinstance(caught.value, hccs.HccsError)
    assert not X.any()


def test_errors_survive_pickling():
    error = errors.ParameterError("B >= 1", "B = 0", "Raise it.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.ParameterError
    assert str(again) == "expected B >= 1; got B = 0. Raise it."


def run_with_isa(name: str) -> subprocess.CompletedProcess[str]:
    program = "import hccs; print(hccs.backends.cpu.info().isa)"
    environment = {**os.environ, "HCCS_ISA": name}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def test_environment_forces_an_instruction_set():
    assert run_with_isa("scalar").stdout.strip() == "scalar"


def test_environment_naming_an_unknown_instruction_set_is_refused():
    refused = run_with_isa("avx1024")
    assert refused.returncode != 0
    assert "HCCS_ISA to be one of scalar" in refused.stderr
