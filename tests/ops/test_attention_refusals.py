"""Every wrong call of `hccs.attention` is an `HccsError` that names what was expected."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs import errors

Q, K = np.zeros((2, 3, 4, 16), np.int8), np.zeros((2, 3, 9, 16), np.int8)
GOOD = {
    "q": Q,
    "k": K,
    "v": K,
    "theta": hccs.HeadParams(444, 11, 40),
    "requant": hccs.Requant(hccs.FixedPoint(1, 1)),
}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": Q.astype(np.float32)}, errors.DtypeError, "q of dtype int8; got dtype float32"),
        ({"v": K.astype(np.int16)}, errors.DtypeError, "v of dtype int8; got dtype int16"),
        ({"k": K.tolist()}, errors.DtypeError, "k to be a NumPy array like q.*got list"),
        ({"q": Q[0, 0, 0]}, errors.ShapeError, r"q of shape \[..., heads, nq, d\]; got shape \(16,\)"),
        ({"k": K[..., :8]}, errors.ShapeError, "k and v of one shape"),
        ({"k": K[:, :2], "v": K[:, :2]}, errors.ShapeError, "Heads may share k and v"),
        ({"k": K[0], "v": K[0]}, errors.ShapeError, r"like q's \(2, 3, 4, 16\)"),
        ({"q": Q[..., :0], "k": K[..., :0], "v": K[..., :0]}, errors.ShapeError, "d = 0"),
        (
            {name: np.zeros((1, 1, 1025), np.int8) for name in "qkv"},
            errors.ShapeError,
            "1 to 1024 columns.*d = 1025",
        ),
        ({"theta": (444, 11, 40)}, errors.DtypeError, "hccs.HeadParams; got tuple"),
        ({"requant": 0.5}, errors.DtypeError, "hccs.Requant; got float"),
        ({"theta": hccs.HeadParams(4000, 11, 40)}, errors.ParameterError, "at most 8 columns"),
        (
            {"theta": hccs.HeadParams([444] * 4, 1, 1)},
            errors.ShapeError,
            r"\(2, 3\); got theta of shape \(4,\)",
        ),
        (
            {"requant": hccs.Requant(hccs.FixedPoint([1] * 2, 1))},
            errors.ShapeError,
            r"requant's shape.*\(2, 3\); got requant of shape \(2,\)",
        ),
        (
            {"valid": np.ones((5, 9), bool)},
            errors.MaskError,
            r"nq, nk\] = \(2, 3, 4, 9\); got shape \(5, 9\)",
        ),
        ({"valid": np.array([1, 2])}, errors.MaskError, "row lengths that broadcast"),
        ({"valid": np.array(10)}, errors.MaskError, "between 0 and 9"),
        ({"valid": np.zeros(9)}, errors.DtypeError, "booleans or integer lengths"),
        ({"q": K, "k": Q, "v": Q, "causal": True}, errors.MaskError, "9 queries, 4 keys"),
        ({"causal": 1}, errors.DtypeError, "causal to be True or False; got 1"),
        ({"mode": "i16_div"}, errors.ModeError, "mode None, 'u8_div', 'u8_clb' or 'u8_lin'; got 'i16_div'"),
        ({"mode": "fast"}, errors.ModeError, "got 'fast'"),
        ({"out": "float64"}, errors.ParameterError, "out to be one of float32"),
        ({"out": np.zeros(3)}, errors.ParameterError, "out to be one of float32"),
        ({"out": "int8"}, errors.ParameterError, "requant with an output factor"),
        ({"out": "bfloat16"}, errors.DtypeError, "torch tensors for half precision"),
        ({"threads": 0}, errors.ParameterError, "threads to be an integer from 1 to 4096; got 0"),
    ],
)
def test_wrong_calls(change, error, says):
    arguments = {**GOOD, **change}
    arrays = [arguments.pop(name) for name in ("q", "k", "v", "theta", "requant")]
    with pytest.raises(error, match=says) as caught:
        hccs.attention(*arrays, **arguments)
    assert isinstance(caught.value, hccs.HccsError)
