"""Logits for every method: several heads, padding, and the edges of int8."""

import numpy as np
import pytest

import hccs_lab.surrogates as surrogates
from tests.conftest import logits

SCALES = np.array([0.02, 0.06, 0.11])
LENGTHS = np.array([40, 17, 1, 33])[:, None, None]

# ReLA weighs by the value of a logit and ConSmax has no maximum: a shift of the row changes them.
WITHOUT_MAXIMUM = {"rela", "consmax"}
SUMMING_TO_ONE = {"softmax", "sparsemax", "entmax15", "entmax", "sas", "exaq", "vitis_bf16", "iron_bf16"}


def data():
    """int8 logits [batch, heads, q, k] and their mask."""
    x = logits(seed=3, shape=(4, 3, 8, 40), spread=30)
    x[0, :, 0] = 127
    x[0, :, 1] = -128
    x[0, :, 2, 0], x[0, :, 2, 1:] = 127, -128
    return x, np.broadcast_to(np.arange(40) < LENGTHS[..., None], x.shape)


def calibrated(name, x, scale, valid):
    method = surrogates.get(name)
    return method, method.calibrate(x, scale, valid)


@pytest.fixture(params=surrogates.names())
def name(request):
    """Each method in turn."""
    return request.param
