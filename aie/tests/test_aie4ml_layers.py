"""Linear layers for aie4ml: the law's integers by shifts alone, and a lowering that keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hccs.cli.app import app
from hccs.numbers.layers import LinearParams
from hccs.program import IntegerModel
from hccs.program import operators as op
from hccs.reference.linear import linear
from hccs_aie.export.aie4ml_layers import LAYERS, REFUSED, export_layers, lowered_and_not, widened
from tests.program.programs import random_embedder
from tests.program.test_program import small_program
from tests.program.test_values import decoder


def as_aie4ml_computes(x: np.ndarray, file: bytes) -> np.ndarray:
    """A wide sum, a shift that rounds half to even, saturation: what the kernel's configuration says."""
    made = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(file).graph.initializer}
    sums = x.astype(np.int64) @ made["weight"].astype(np.int64) + made["bias"]
    bounds = np.iinfo(made["zero_output"].dtype)
    return np.clip(np.rint(sums / float(made["step"])), bounds.min, bounds.max)


def test_every_layer_has_the_reference_integers(tmp_path: Path) -> None:
    for program in (small_program(), decoder()):
        folder = export_layers(program, tmp_path / program.labels[0], rows=40)
        listed = json.loads((folder / "operators.json").read_text())
        assert {*listed["layers"], *listed["missing"]} == {step.output for step in program.operators}
        for name in listed["layers"]:
            with np.load(folder / "vectors" / f"{name}.npz") as vectors:
                x, y = vectors["x"], vectors["y"]
            got = as_aie4ml_computes(x, (folder / f"{name}.onnx").read_bytes())
            assert np.array_equal(np.maximum(got, -np.iinfo(y.dtype).max), y)


@pytest.mark.parametrize(("limit", "largest"), [(127, 250), (127, 3000), (32767, 60000)])
def test_multipliers_move_into_the_weights(limit: int, largest: int) -> None:
    rng = np.random.default_rng(largest)
    weight = rng.integers(-127, 128, (30, 50)).astype(np.int8)
    multiplier = rng.integers(1, largest + 1, 30).astype(np.int32)
    layer = LinearParams(weight, rng.integers(-9999, 9999, 30).astype(np.int32), multiplier, limit, 128)
    made = widened(layer)
    assert not isinstance(made, str) and made.cut == (largest > 258)
    x = rng.integers(-128, 128, (200, 50)).astype(np.int8)
    sums = made.inputs(x).astype(np.int64) @ made.weight.astype(np.int64) + made.bias
    assert np.array_equal(np.clip(np.rint(sums / 2.0**16), -limit, limit), linear(x, layer))


def test_what_does_not_fit_is_named() -> None:
    weight, bias = np.full((1, 4), 127, np.int8), np.zeros(1, np.int32)
    assert widened(LinearParams(weight, bias, np.array([2**20], np.int32))) == (
        "weights times multipliers beyond 24 bits"
    )
    assert widened(LinearParams(weight, bias + 2**20, np.array([2**12], np.int32))) == (
        "biases times multipliers beyond int32"
    )
    _, missing = lowered_and_not(small_program())
    assert "24-bit factor" in missing["context"] and "table of 256" in missing["tanh"]


def test_every_operator_is_a_layer_or_is_refused_with_a_reason() -> None:
    assert {*LAYERS, *REFUSED} == {*op.OPERATORS.values()}
    program = random_embedder(3)
    layers, missing = lowered_and_not(program)
    assert {*layers, *missing} == {step.output for step in program.operators}
    for step in program.operators:
        if type(step) is op.Linear and program.values[step.inputs[0]].exponents:
            assert "exponent for each row of its input" in missing[step.output]
    assert {op.NarrowRows, op.Ramp} <= {type(step) for step in program.operators}


@dataclass(frozen=True, eq=False)
class Negated(op.Operator):
    inputs: tuple[str]
    output: str

    def written(self, given):
        return given[0]


def test_an_operator_that_the_export_does_not_know_is_named() -> None:
    program = small_program()
    steps = list(program.operators)
    place, last = next((i, s) for i, s in enumerate(steps) if type(s) is op.Narrow)
    steps.insert(place + 1, Negated((last.output,), "negated"))
    _, missing = lowered_and_not(replace(program, operators=tuple(steps)))
    assert missing["negated"].startswith("Negated, an operator that this export does not know")


def test_aie4ml_lowers_them_with_the_same_rounding(tmp_path: Path) -> None:
    pytest.importorskip("aie4ml")
    folder = export_layers(small_program(h=32), tmp_path / "layers", rows=32)
    done = subprocess.run(
        [sys.executable, "lower.py", "qkv", "part"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, result in (("qkv", "int8_t"), ("part", "int16_t")):
        headers = "".join(path.read_text() for path in (folder / "project" / name).rglob("parameters*.h"))
        for setting in ("SHIFT = 16;", "rounding_mode::conv_even", "acc_scalar_t = acc64"):
            assert setting in headers
        assert f"result_t = {result}" in headers and "weight_t = int16_t" in headers


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    IntegerModel(small_program()).save(tmp_path / "model.hccs")
    command = ["aie", "layers", str(tmp_path / "model.hccs"), "--out", str(tmp_path / "out"), "--rows", "32"]
    for _ in range(2):  #                                                 the second replaces the first
        done = runner.invoke(app, command)
        assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "4 linear layers" in said and "not context: logits by a 24-bit factor" in said
