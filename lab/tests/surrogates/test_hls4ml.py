"""The hls4ml form against hls4ml: its C++ templates, compiled and run on the same rows."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hccs_lab.surrogates as surrogates
from tests.conftest import logits

pytestmark = pytest.mark.hls4ml
SOURCE = Path(__file__).parent / "hls4ml_softmax.cpp"


# (columns, integer bits, scale): the third saturates the sum, and the last wraps logits and distances.
CASES = [(40, 6, 0.11), (7, 4, 0.02), (200, 5, 0.004), (16, 4, 0.11)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """hls4ml's templates for all cases, compiled once: reading them takes most of the time."""
    found = importlib.util.find_spec("hls4ml")
    if found is None or shutil.which("g++") is None:
        pytest.skip("needs hls4ml (pip install --no-deps hls4ml) and g++")
    templates = Path(found.submodule_search_locations[0]) / "templates/vivado"
    program = tmp_path_factory.mktemp("hls4ml") / "softmax"
    includes = [f"-I{templates}", f"-I{templates / 'ap_types'}"]
    cases = "-DCASES=" + " ".join(f"CASE({columns}, {bits})" for columns, bits, _ in CASES)
    subprocess.run(["g++", "-std=c++14", "-w", *includes, cases, SOURCE, "-o", program], check=True)
    return program


@pytest.mark.parametrize(("columns", "integer_bits", "scale"), CASES)
def test_every_bit_is_that_of_hls4ml(program, columns, integer_bits, scale):
    x = logits(seed=5, shape=(60, columns))
    text = "\n".join(repr(value) for value in (x * scale).ravel().tolist())
    command = [program, str(CASES.index((columns, integer_bits, scale)))]
    printed = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    expected = np.array(printed.split(), int).reshape(x.shape)
    found = surrogates.get("hls4ml")(x, scale, integer_bits=integer_bits).integers
    np.testing.assert_array_equal(found, expected)
    assert found.any(axis=-1).all()
