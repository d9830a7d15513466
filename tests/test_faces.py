"""The faces of the rooms are frozen, like that of the package: names come and go here on purpose only."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

FACES = {
    "nn": [
        "AttentionInputs",
        "AttentionSlot",
        "IntegerPlan",
        "Mended",
        "Pixels",
        "SoftmaxSlot",
        "attach",
        "attention_layers",
        "calibrate_in_sequence",
        "calibrate_operands",
        "collect",
        "current_table",
        "detach",
        "fill",
        "hccs_softmax",
        "lower",
        "measure_ranges",
        "quantised",
        "reconstruct",
        "refine",
        "restore",
        "where_accuracy_goes",
    ],
    "calibration": [
        "Calibration",
        "CalibrationWarning",
        "HeadRecord",
        "HeadStatistics",
        "LogitRange",
        "ScaleCandidates",
        "ValueRanges",
        "calibrate",
        "deployed_kl",
        "fidelity",
        "quantise",
        "search",
    ],
    "export": ["export_c", "export_c_model", "run_table", "write_onnx"],
    "surrogates": ["Costs", "PerRow", "Result", "Surrogate", "get", "names"],
}


@pytest.mark.parametrize("room", FACES)
def test_the_face_of_a_room(room):
    if room == "nn":
        pytest.importorskip("torch")
    module = importlib.import_module(f"hccs.{room}")
    assert sorted(module.__all__) == sorted(FACES[room])
    for name in module.__all__:
        assert getattr(module, name).__doc__


@pytest.mark.parametrize("room", FACES)
def test_no_function_hides_a_module(room):
    """`hccs.nn.attach` is a function: a module of that name could never be reached."""
    module = importlib.import_module(f"hccs.{room}")
    for name in module.__all__:
        assert importlib.util.find_spec(f"hccs.{room}.{name}") is None


def test_rooms_are_there_once_the_package_is():
    pytest.importorskip("torch")
    program = "import hccs; print(hccs.nn.attach.__name__, hccs.calibration.search.__name__)"
    program += "; print(hccs.export.export_c.__name__, hccs_lab.surrogates.get.__name__)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["attach", "search", "export_c", "get"]
