"""The project's own promises: rooms import one way, exported names are documented, NumPy alone suffices."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hccs._extras import require
from hccs.errors import MissingExtraError
from hccs.program.model import IntegerModel
from tests.program.programs import random_batch, random_program

ROOT = Path(__file__).parent.parent


def test_rooms_import_one_way():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", "pyproject.toml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "room", ["hccs", "hccs.calibration", "hccs.export", "hccs.nn", "hccs_lab.surrogates"]
)
def test_exported_names_are_documented_and_hide_no_module(room):
    """`hccs.nn.attach` is a function: a module of that name could never be reached."""
    if room in ("hccs.nn", "hccs_lab.surrogates"):
        pytest.importorskip("torch")
    module = importlib.import_module(room)
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
        assert importlib.util.find_spec(f"{room}.{name}") is None, name


def test_rooms_are_there_once_the_package_is():
    pytest.importorskip("torch")
    program = "import hccs; print(hccs.nn.attach.__name__, hccs.calibration.search.__name__)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["attach", "search"]


def test_core_needs_numpy_alone():
    program = (
        "import sys, hccs, numpy; "
        "foreign = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names); "
        "print(sorted(name for name in foreign if not name.startswith('_')))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch" not in result.stdout
    for name in ("typer", "rich", "matplotlib", "safetensors"):
        assert f"'{name}'" not in result.stdout


def test_missing_extras_tell_both_ways_to_install_them():
    """The package may come from an index or from a checkout; the words for it are kept in one place."""
    with pytest.raises(MissingExtraError) as refused:
        require("a_package_that_nobody_has", "hf")
    assert "pip install 'hccs[hf]'" in str(refused.value)
    assert "pip install '.[hf]'" in str(refused.value)
    package = ROOT / "src" / "hccs"
    spelled = [path.name for path in package.rglob("*.py") if "pip install 'hccs[" in path.read_text("utf-8")]
    assert spelled == ["_extras.py"]


BARE = """
import sys  # the finder of an editable installation would prefer the compiled package
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
"""
COMPILED = """
import hccs.ops.dispatch
assert hccs.ops.dispatch.is_compiled() is %s, hccs.__file__
"""
ANSWERS = """
import sys
import numpy as np
import hccs
from hccs.ops.quantise import by_factor

rng, found = np.random.default_rng(0), {}
one = hccs.HeadParams(B=[444, 300, 200], S=[11, 4, 3], D=[40, 60, 50])
two = hccs.HeadParams(B=[1023, 900, 800], S=[4, 3, 2], D=[50, 60, 70], S2=41, D2=[20, 10, 5], f=2)
x = rng.integers(-128, 128, (2, 3, 5, 17)).astype(np.int8)
selections = (None, rng.integers(0, 18, (2, 1, 5)), rng.random((2, 1, 1, 17)) < 0.7)
scales = dict(q_scale=0.02, k_scale=[0.02, 0.03, 0.01], v_scale=0.01, logit_scale=0.05)
requant = hccs.Requant.from_scales(**scales, scaling=0.125, out_scale=0.009)
q, k, v = (rng.integers(-128, 128, (2, 3, n, 8)).astype(np.int8) for n in (5, 17, 17))
for i, theta in enumerate((one, two)):
    for j, valid in enumerate(selections):
        for mode in hccs.Mode:
            found[f"softmax {i} {j} {mode.value}"] = hccs.softmax(x, theta, mode, valid)
        for mode in (None, "u8_div", "u8_clb", "u8_lin"):
            for out in ("float32", "int8"):
                options = dict(valid=valid, causal=j == 1, mode=mode, out=out)
                found[f"attention {i} {j} {mode} {out}"] = hccs.attention(q, k, v, theta, requant, **options)
        N, Z = hccs.attention(q, k[:, :1], v[:, :1], theta, requant, valid=valid, out="pair")
        found |= {f"N {i} {j}": N, f"Z {i} {j}": Z}
found["int8"] = by_factor(rng.normal(0, 9, (2, 3, 5, 8)).astype(np.float32), np.float32([10, 20, 0.5]))
given = np.load(sys.argv[1])
for seed in range(4):
    batch = [given[name] for name in sorted(given) if name.startswith(f"{seed} ")]
    found[f"model {seed}"] = hccs.IntegerModel.load(sys.argv[2] % seed)(*batch).scores
np.savez(sys.argv[3], **found)
"""

REFUSED = """
import importlib.util, sys
import hccs, numpy as np
for call in (
    lambda: hccs.calibrate,
    lambda: hccs.softmax(np.zeros((2, 4), np.int8), hccs.HeadParams(300, 5, 40), valid=np.array([3, 5])),
    lambda: hccs.softmax(np.zeros((2, 4), np.int8), hccs.HeadParams(300, 5, 40), valid=np.array([1, 2, 3])),
):
    try:
        call()
    except hccs.HccsError as error:
        print(type(error).__name__)
sys.argv = ["hccs", "info"]
if importlib.util.find_spec("typer"):
    from hccs.cli import main
    try:
        main()
    except SystemExit as stopped:
        print(stopped.code)
"""


def answered(program, place, *arguments):
    environment = os.environ if place is None else {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_without_compiled_modules_numpy_gives_the_same_bits(tmp_path):
    """A copy of the package in which nothing is compiled answers like this one, and refuses like it."""
    shutil.copytree(ROOT / "src" / "hccs", tmp_path / "bare" / "hccs", ignore=shutil.ignore_patterns("*.so"))
    given = {}
    for seed in range(4):
        program = random_program(seed, lines=1 + seed % 2)
        IntegerModel(program).save(tmp_path / f"{seed}.hccs")
        given |= {f"{seed} {at}": part for at, part in enumerate(random_batch(program, seed, count=2))}
    np.savez(tmp_path / "given.npz", **given)
    found = {}
    for name, start, place in (("native", "import hccs\n", None), ("bare", BARE, tmp_path / "bare")):
        arguments = [tmp_path / "given.npz", tmp_path / "%d.hccs", tmp_path / f"{name}.npz"]
        answered(start + COMPILED % (name == "native") + ANSWERS, place, *arguments)
        found[name] = dict(np.load(tmp_path / f"{name}.npz"))
    assert len(found["native"]) > 80 and found["native"].keys() == found["bare"].keys()
    for name, array in found["native"].items():
        assert array.dtype == found["bare"][name].dtype and array.tobytes() == found["bare"][name].tobytes()
    refused = answered(BARE + REFUSED, tmp_path / "bare")
    assert refused.split()[:3] == ["MissingExtraError", "MaskError", "MaskError"]
    if importlib.util.find_spec("typer"):
        assert "hccs: expected the compiled part of hccs for calibration" in refused
