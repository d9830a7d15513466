"""The reference itself, on rows worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs.reference.softmax import softmax as reference_softmax

THETA = hccs.HeadParams(B=300, S=5, D=40)
X = np.array([[10, 8, -90]], np.int8)
# delta = 0, 2, 40; s = 300, 290, 100; Z = 690; k = 9.


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("i16_div", [300 * 47, 290 * 47, 100 * 47]),  # rho = floor(32767 / 690) = 47
        ("i16_clb", [300 * 63, 290 * 63, 100 * 63]),  # rho = 32767 >> 9 = 63
        ("u8_div", [110, 107, 36]),  # rho = floor(8355840 / 690) = 12109
        ("u8_clb", [149, 144, 49]),  # rho = 8355840 >> 9 = 16320
    ],
)
def test_a_row_by_hand(mode, expected):
    np.testing.assert_array_equal(reference_softmax(X, THETA, mode), [expected])


def test_clb_saturates():
    # One column: Z = s = 511, rho = 32767 >> 8 = 127, s * rho = 64897.
    assert reference_softmax(np.zeros((1, 1), np.int8), hccs.HeadParams(511, 0, 1), "i16_clb") == 32767
    assert reference_softmax(np.zeros((1, 1), np.int8), hccs.HeadParams(511, 0, 1), "u8_clb") == 255


def test_short_row_scales_up():
    # Z = 3: e = 7, s = 384, Z = 384, rho = 21760: 384 * 21760 >> 15 = 255.
    assert reference_softmax(np.zeros((1, 1), np.int8), hccs.HeadParams(3, 0, 1), "u8_div") == 255


def test_masked_positions_and_empty_rows_are_zero():
    out = reference_softmax(
        np.stack([X[0], X[0]]), THETA, "i16_div", np.array([[True, False, True], [False] * 3])
    )
    np.testing.assert_array_equal(out, [[300 * 81, 0, 100 * 81], [0, 0, 0]])
