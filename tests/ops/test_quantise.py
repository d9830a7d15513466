"""The two rules of quantising: logits are divided by their scale, q, k and v multiplied by a factor."""

import numpy as np
import pytest

from hccs import calibration
from hccs.errors import DataError, ParameterError
from hccs.ops.quantise import by_factor, quantise

# (n + 1/2) * scale in float32: where a product with the rounded reciprocal and the quotient may differ.
SCALE = np.float32(0.049)
HALVES = np.array([(n + 0.5) * float(SCALE) for n in range(-120, 120)], np.float32)[None]


def test_arrays_divide_in_float64():
    expected = np.clip(np.rint(HALVES.astype(np.float64) / 0.049), -128, 127)
    assert np.array_equal(quantise(HALVES, 0.049), expected)
    assert calibration.quantise is quantise


def test_tensors_divide_in_float32_and_do_not_multiply():
    torch = pytest.importorskip("torch")
    quotient, product = np.rint(HALVES / SCALE), np.rint(HALVES * (np.float32(1) / SCALE))
    assert (quotient != product).any()
    assert np.array_equal(quantise(torch.from_numpy(HALVES), float(SCALE)).numpy(), quotient)
    wide = torch.from_numpy(HALVES).double()
    assert np.array_equal(quantise(wide, float(SCALE)).numpy(), np.rint(wide.numpy() / np.float64(SCALE)))


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_operands_multiply_in_float32(kind):
    torch = pytest.importorskip("torch")
    factor = np.float32(1) / np.array([SCALE])
    given = (HALVES[None, None], factor)
    found = by_factor(*given) if kind == "array" else by_factor(*map(torch.from_numpy, given)).numpy()
    assert np.array_equal(found, np.rint(HALVES[None, None] * factor))


@pytest.mark.parametrize("scale", [0.0, -0.1, np.nan, np.inf, 1e-60, 1e300, [0.1, 0.0]], ids=str)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_scales_that_are_not_positive_are_refused(kind, scale):
    z = np.zeros((2, 3, 4), np.float32)
    if kind == "tensor":
        z = pytest.importorskip("torch").from_numpy(z)
    with pytest.raises(ParameterError, match="scale > 0 and finite in float32"):
        quantise(z, scale)


def test_tensors_that_are_no_numbers_are_refused_where_they_take_part():
    torch = pytest.importorskip("torch")
    z = torch.tensor([[0.5, torch.nan, -torch.inf]])
    with pytest.raises(DataError, match="finite logits; got NaN"):
        quantise(z, 0.5)
    assert quantise(z, 0.5, valid=torch.tensor([[True, False, True]])).tolist() == [[1, 0, -128]]
    assert quantise(z, 0.5, valid=torch.tensor([1])).tolist() == [[1, 0, 0]]
