"""Fixed-point factors: the nearest one, its range, and refusals that say what is wrong."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hccs
from hccs import errors
from hccs.numbers.requant import MAX_SHIFT

SCALES = {"q_scale": 0.02, "k_scale": 0.03, "v_scale": 0.01, "logit_scale": 0.05, "scaling": 0.125}


@given(st.floats(2.0**-24, 2.0**23, exclude_max=True))
def test_nearest_factor_is_within_half_a_step_of_24_bits(factor):
    if factor > 2**23 * (1 - 2**-25):
        return
    found = hccs.FixedPoint.nearest(factor)
    assert 2**23 <= found.multiplier < 2**24
    assert 1 <= found.shift <= MAX_SHIFT
    exact = Fraction(factor) * 2**found.shift
    assert abs(exact - found.multiplier) <= Fraction(1, 2)


def test_rounding_up_to_the_next_power_of_two_carries():
    assert hccs.FixedPoint.nearest(1 - 2.0**-30) == hccs.FixedPoint(2**23, 23)
    assert hccs.FixedPoint.nearest(2.0**-24) == hccs.FixedPoint(2**23, 47)


def test_scales_per_head_broadcast():
    requant = hccs.Requant.from_scales(**{**SCALES, "q_scale": [0.02, 0.04], "out_scale": 0.02})
    assert requant.shape == (2,)
    assert requant.logits.multiplier.tolist() == [12884902, 12884902]
    assert requant.logits.shift.tolist() == [33, 32]
    assert requant.output == hccs.FixedPoint(2**23, 24)
    assert requant.v_scale == np.float32(0.01)
    packed = requant.packed
    np.testing.assert_array_equal(packed[:, :4], [[12884902, 33, 2**23, 24], [12884902, 32, 2**23, 24]])
    np.testing.assert_array_equal(packed[:, 4].view(np.float32), np.float32([0.01, 0.01]))


def test_values_are_frozen_and_compare_by_content():
    scale = np.array([0.5, 0.25], np.float32)
    requant = hccs.Requant(hccs.FixedPoint([3, 4], 2), scale)
    scale[0] = 7
    assert requant == hccs.Requant(hccs.FixedPoint([3, 4], [2, 2]), [0.5, 0.25])
    assert hash(requant) == hash(hccs.Requant(hccs.FixedPoint([3, 4], [2, 2]), [0.5, 0.25]))
    assert requant != hccs.Requant(hccs.FixedPoint([3, 4], 2), scale)
    assert requant != hccs.Requant(hccs.FixedPoint([3, 4], 2), [0.5, 0.25], hccs.FixedPoint(1, 1))
    for array in (requant.packed, requant.v_scale, requant.logits.multiplier, requant.logits.packed):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: hccs.FixedPoint(0.5, 3), errors.DtypeError, "multiplier to be an integer"),
        (lambda: hccs.FixedPoint(True, 3), errors.DtypeError, "multiplier to be an integer"),
        (lambda: hccs.FixedPoint(0, 3), errors.ParameterError, "multiplier from 1 to 16777215; got 0 to 0"),
        (lambda: hccs.FixedPoint(2**24, 3), errors.ParameterError, "16777216"),
        (lambda: hccs.FixedPoint(1, 0), errors.ParameterError, "shift from 1 to 47"),
        (lambda: hccs.FixedPoint(1, [3, 48]), errors.ParameterError, "got 3 to 48"),
        (lambda: hccs.FixedPoint([1, 2], [1, 2, 3]), errors.ShapeError, "broadcast together"),
        (lambda: hccs.FixedPoint(np.zeros((0,), int), 1), errors.ShapeError, "at least one value"),
        (lambda: hccs.FixedPoint.nearest(2.0**23), errors.ParameterError, r"from 2\^-24 to 2\^23"),
        (lambda: hccs.FixedPoint.nearest(2.0**-25), errors.ParameterError, r"from 2\^-24 to 2\^23"),
        (lambda: hccs.FixedPoint.nearest(-1.0), errors.ParameterError, "factor > 0 and finite"),
        (lambda: hccs.FixedPoint.nearest("1"), errors.DtypeError, "a number"),
        (lambda: hccs.Requant(0.1), errors.DtypeError, "logits to be hccs.FixedPoint; got float"),
        (lambda: hccs.Requant(hccs.FixedPoint(1, 1), output=2), errors.DtypeError, "output to be"),
        (lambda: hccs.Requant(hccs.FixedPoint(1, 1), 1e-60), errors.ParameterError, "finite in float32"),
        (lambda: hccs.Requant(hccs.FixedPoint(1, 1), 1e60), errors.ParameterError, "got 1e\\+60"),
        (lambda: hccs.Requant(hccs.FixedPoint([1] * 3, 1), [1.0, 2.0]), errors.ShapeError, r"v_scale \(2,\)"),
        *(
            (lambda name=name, value=value: hccs.Requant.from_scales(**{**SCALES, name: value}), error, name)
            for name in (*SCALES, "out_scale")
            for value, error in [
                (0.0, errors.ParameterError),
                (float("nan"), errors.ParameterError),
                ([1.0, float("inf")], errors.ParameterError),
                ("big", errors.DtypeError),
            ]
        ),
        (
            lambda: hccs.Requant.from_scales(**{**SCALES, "logit_scale": 1e9}),
            errors.ParameterError,
            "q_scale \\* k_scale \\* scaling / logit_scale from",
        ),
        (
            lambda: hccs.Requant.from_scales(**SCALES, out_scale=1e-20),
            errors.ParameterError,
            "v_scale / out_scale from",
        ),
    ],
)
def test_wrong_factors_and_scales(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call()
    assert isinstance(caught.value, hccs.HccsError)
