"""The hls4ml form against hls4ml: its C++ templates, compiled and run on the same rows."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hccs.surrogates as surrogates
from tests.conftest import logits

pytestmark = pytest.mark.hls4ml
SOURCE = Path(__file__).parent / "hls4ml_softmax.cpp"


@pytest.fixture(scope="module")
def templates():
    found = importlib.util.find_spec("hls4ml")
    if found is None or shutil.which("g++") is None:
        pytest.skip("needs hls4ml (pip install --no-deps hls4ml) and g++")
    return Path(found.submodule_search_locations[0]) / "templates/vivado"


# The third saturates the sum, and the last wraps logits and distances.
@pytest.mark.parametrize(
    ("columns", "integer_bits", "scale"), [(40, 6, 0.11), (7, 4, 0.02), (200, 5, 0.004), (16, 4, 0.11)]
)
def test_every_bit_is_that_of_hls4ml(templates, tmp_path, columns, integer_bits, scale):
    program = tmp_path / "softmax"
    includes = [f"-I{templates}", f"-I{templates / 'ap_types'}"]
    defines = [f"-DCOLUMNS={columns}", f"-DINTEGER_BITS={integer_bits}"]
    subprocess.run(["g++", "-std=c++14", "-w", *includes, *defines, SOURCE, "-o", program], check=True)
    x = logits(seed=5, shape=(60, columns))
    text = "\n".join(repr(value) for value in (x * scale).ravel().tolist())
    printed = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout
    expected = np.array(printed.split(), int).reshape(x.shape)
    found = surrogates.get("hls4ml")(x, scale, integer_bits=integer_bits).integers
    np.testing.assert_array_equal(found, expected)
    assert found.any(axis=-1).all()
