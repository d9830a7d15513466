"""Modes, parameters and the admissible region."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hccs
from hccs import errors


@pytest.mark.parametrize("n", [1, 2, 37, 64, 128, 512, 4096])
def test_region_is_exactly_what_the_bounds_say(n):
    region = hccs.Region(n)
    rng = np.random.default_rng(n)
    edges = [1, 2, 63, 126, 127]
    for S, D in itertools.product([0, 1, 2, 5, 126, 127], edges):
        inside = range(S * D + -(-256 // n), 32767 // n + 1)
        for B in {inside.start - 1, inside.start, inside.stop - 1, inside.stop, int(rng.integers(1, 32768))}:
            assert ((B, S, D) in region) == (B in inside)
            if B in inside:  # every mode's arithmetic holds on a full row
                assert n * B <= 32767
                assert n * (B - S * D) >= 256


def test_region_lists_and_counts_the_same_triples():
    region = hccs.Region(200)
    triples = list(region)
    assert len(triples) == len(region) == len(set(triples))
    assert all(triple in region for triple in triples)
    assert [(D, S, B) for B, S, D in triples] == sorted((D, S, B) for B, S, D in triples)


def test_region_of_n_64_has_641951_triples():
    assert len(hccs.Region(64)) == 641951


@pytest.mark.parametrize(("n", "slope"), [(64, 7), (128, 3), (256, 1), (512, 0)])
def test_largest_slope_at_distance_64(n, slope):
    assert hccs.Region(n).max_slope(64) == slope


@pytest.mark.parametrize(
    ("triple", "says"),
    [
        ((100, 1, 0), "1 <= D <= 127, but D = 0"),
        ((100, 1, 128), "D = 128"),
        ((100, -1, 5), "0 <= S <= 127, but S = -1"),
        ((500, 128, 1), "S = 128"),
        (
            (443, 11, 40),
            r"B >= S\*D \+ ceil\(256/n\) = 444, but B = 443. At n = 64 and D = 40, S may be 0..12",
        ),
        ((512, 11, 40), r"B <= floor\(32767/n\) = 511, but B = 512"),
    ],
)
def test_region_names_the_broken_bound_and_what_fits(triple, says):
    with pytest.raises(errors.ParameterError, match=says):
        hccs.Region(64).require(*triple)


def test_region_of_rows_too_long_says_so():
    region = hccs.Region(40000)
    assert len(region) == 0
    assert list(region) == []
    with pytest.raises(errors.ParameterError, match="at most n = 32767"):
        region.require(1, 0, 1)


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "64"])
def test_region_refuses_what_is_no_length(n):
    with pytest.raises(errors.ParameterError, match="integer >= 1"):
        hccs.Region(n)


@pytest.mark.parametrize(
    ("B", "S", "D", "says"),
    [
        (0, 0, 1, "1 <= B <= 32767"),
        (32768, 0, 1, "1 <= B <= 32767"),
        (100, 3, 40, r"B >= S\*D = 120; got B = 100, S = 3, D = 40. Raise B to 120, or lower S to at most 2"),
        (100, 1, 128, "1 <= D <= 127"),
        (100, 128, 1, "0 <= S <= 127"),
        ([444, 100], [11, 3], 40, "B = 100"),
        (2**40, 0, 1, "fit int32"),
    ],
)
def test_head_params_refuse_what_no_datapath_could_run(B, S, D, says):
    with pytest.raises(errors.ParameterError, match=says):
        hccs.HeadParams(B, S, D)


def test_head_params_refuse_floats_empties_and_shapes_that_do_not_fit():
    with pytest.raises(errors.DtypeError, match="S to be an integer"):
        hccs.HeadParams(444, 11.0, 40)
    with pytest.raises(errors.ShapeError, match="at least one value"):
        hccs.HeadParams([], 1, 1)
    with pytest.raises(errors.ShapeError, match=r"B \(2,\), S \(3,\), D \(\)"):
        hccs.HeadParams([4, 4], [1, 1, 1], 1)


def test_head_params_are_values():
    one, same, other = (
        hccs.HeadParams(444, 11, 40),
        hccs.HeadParams(np.int16(444), 11, 40),
        hccs.HeadParams(443, 11, 40),
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != (444, 11, 40)
    arrays = hccs.HeadParams([444, 300], [11, 4], 40)
    assert arrays.shape == (2,)
    with pytest.raises(ValueError, match="read-only"):
        arrays.B[0] = 1


@pytest.mark.parametrize(("mode", "T", "dtype"), [("i16_div", 32767, "int16"), ("u8_clb", 255, "uint8")])
def test_modes_know_their_output(mode, T, dtype):
    assert hccs.Mode(mode).T == T
    assert hccs.Mode(mode).dtype == dtype
