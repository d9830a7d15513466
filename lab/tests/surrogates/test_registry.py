"""The door: names, refusals, declarations, and that NumPy is enough."""

import copy
import dataclasses
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hccs_lab.surrogates as surrogates
from hccs.errors import DtypeError, MaskError, ParameterError, ShapeError
from hccs_lab.surrogates import registry
from hccs_lab.surrogates.costs import NEEDS

X = np.array([[10, 3, -2, -20]], np.int8)


def test_the_registry_names_every_file_that_defines_a_method():
    files = Path(registry.__file__).parent.glob("*.py")
    defined = {path.stem for path in files if "\nSURROGATE = " in path.read_text()}
    assert defined <= set(surrogates.names()) - registry.FAMILIES.keys()
    assert {*registry.FAMILIES.values()} <= defined
    assert len({*defined, *registry.FAMILIES}) >= 23
    assert len(surrogates.names()) == len({surrogates.get(name).name for name in surrogates.names()})


def test_the_face_is_documented_and_no_function_hides_a_module():
    assert sorted(surrogates.__all__) == ["Costs", "PerRow", "Result", "Surrogate", "get", "names"]
    for name in surrogates.__all__:
        assert getattr(surrogates, name).__doc__
        assert importlib.util.find_spec(f"hccs_lab.surrogates.{name}") is None


def test_unknown_name_is_refused_with_the_list():
    with pytest.raises(ParameterError, match=r"method to be one of softmax, hccs, .*'i_bert'"):
        surrogates.get("i_bert")


def test_declarations_are_complete(name):
    method = surrogates.get(name)
    costs = method.costs
    assert method.name == name
    assert costs.source and costs.input and costs.output
    assert costs.needs <= set(NEEDS)
    assert ("table" in costs.needs) == (costs.table_bytes > 0)
    assert ("divide" in costs.needs) == (costs.divides(64) > 0)
    assert ("exp" in costs.needs) == (costs.exponentials(64) > 0)
    assert 0 < costs.operations(64) < costs.operations(128)
    assert costs.bits_inside > 0
    assert set(method.learnable) <= set(method.parameters)


def test_a_need_nobody_knows_is_refused():
    costs = surrogates.get("ibert").costs
    with pytest.raises(ParameterError, match=r"needs among exp, divide.*got sqrt"):
        dataclasses.replace(costs, needs=costs.needs | {"sqrt"})


def test_integer_methods_return_integers(name):
    method = surrogates.get(name)
    params = method.calibrate(X, 0.1)
    result = method(X, 0.1, **params)
    assert result.probabilities.dtype == np.float64
    if method.costs.integer_only:
        assert result.integers.dtype.kind in "iu"
        np.testing.assert_allclose(result.integers * result.unit, result.probabilities, rtol=1e-15)
    else:
        assert result.integers is None and result.unit is None


def test_numpy_is_enough():
    program = (
        "import sys, numpy as np, hccs_lab.surrogates as s\n"
        "x = np.array([[10, 3, -2, -20]], np.int8)\n"
        "for name in s.names():\n"
        "    method = s.get(name)\n"
        "    method(x, 0.1, **method.calibrate(x, 0.1))\n"
        "print([m for m in ('torch', 'entmax', 'transformers', 'hls4ml', 'aie4ml') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_methods_travel_by_name():
    method = surrogates.get("ita")
    assert pickle.loads(pickle.dumps(method)) is method
    assert copy.deepcopy(method) is method


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (DtypeError, "x of dtype int8", lambda m: m(X.astype(np.int16), 0.1)),
        (ShapeError, "at least one dimension", lambda m: m(np.int8(3), 0.1)),
        (ParameterError, "scale > 0", lambda m: m(X, 0.0)),
        (ParameterError, "scale > 0", lambda m: m(X, np.nan)),
        (DtypeError, "scale to be a number", lambda m: m(X, "0.1")),
        (ShapeError, r"broadcast against x.shape\[:-2\] = \(\)", lambda m: m(X, [0.1, 0.2])),
        (DtypeError, "booleans or integer lengths", lambda m: m(X, 0.1, np.zeros(4))),
        (MaskError, "lengths between 0 and 4", lambda m: m(X, 0.1, np.array([5]))),
        (MaskError, r"a mask that broadcasts to x.shape = \(1, 4\)", lambda m: m(X, 0.1, np.ones(3, bool))),
        (MaskError, r"lengths that broadcast to .* = \(1,\)", lambda m: m(X, 0.1, np.array([1, 2]))),
        (ParameterError, "parameters of ibert: none; got clip", lambda m: m(X, 0.1, clip=3)),
        (ParameterError, "scale <= 1.67", lambda m: m(X, 2.0)),
    ],
)
def test_bad_arguments_are_refused(error, message, call):
    with pytest.raises(error, match=message):
        call(surrogates.get("ibert"))


@pytest.mark.parametrize(
    ("name", "message", "params"),
    [
        ("hccs", "got no B, S, D.*calibrate", {}),
        ("hccs", "B >= S\\*D", {"B": 10, "S": 11, "D": 40}),
        ("consmax", "got no beta, gamma", {}),
        ("consmax", "gamma > 0", {"beta": 1.0, "gamma": 0.0}),
        ("entmax", "alpha > 1", {"alpha": 1.0}),
        ("ita", "form to be one of one_pass, streaming", {"form": "two_pass"}),
        ("index_softmax", "form to be one of rounded, simulation, kernel", {"form": "paper"}),
        ("softmax_s8", "output to be one of int8, int16", {"output": "uint8"}),
        ("exaq", "got no sigma, span", {}),
        ("exaq", "bits to be 2, 3 or 4", {"sigma": 1.0, "span": 5.0, "bits": 5}),
        ("exaq", "sigma >= 0 and span > 0", {"sigma": 1.0, "span": 0.0}),
        ("log_int_softmax", "scale <= 1.67", {"scale": 2.0}),
        ("iron_bf16", "engine to be one of aie_ml, aie_mlv2", {"engine": "aie1"}),
        ("hls4ml", "integer_bits to be a whole number", {"integer_bits": 5.5}),
        ("aie4ml_exp", "between 1 and 128", {"scale": 0.5}),
    ],
)
def test_parameters_out_of_range_are_refused(name, message, params):
    scale = params.pop("scale", 0.1)
    with pytest.raises(ParameterError, match=message):
        surrogates.get(name)(X, scale, **params)
