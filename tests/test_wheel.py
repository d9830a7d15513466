"""The wheels: what they hold, and that the product works in an environment with NumPy alone."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

import hccs
import hccs_aie
import hccs_lab

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.wheel

MUST_HOLD = [
    "hccs/py.typed",
    "hccs/backends/cpu/_native.*",
    "hccs/backends/cpu/_native.pyi",
    "hccs/calibration/_native.*",
    "hccs-*.dist-info/licenses/LICENSE",
]
MUST_NOT_HOLD = [
    "*/native/*",
    "*CMakeLists.txt",
    "*.o",
    "*__pycache__*",
    "*emulation*",
    "*.tsv",
    "*.safetensors",
]
LARGEST = 3 << 20
"""Compressed bytes of the product."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from this checkout; its build folder is kept, so that only what changed is compiled."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "-w", str(folder), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("hccs-*.whl")
    return built


def test_it_holds_what_it_must_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    missing = [pattern for pattern in MUST_HOLD if not any(fnmatch(name, pattern) for name in names)]
    extra = [name for name in names if any(fnmatch(name, pattern) for pattern in MUST_NOT_HOLD)]
    assert (missing, extra) == ([], [])
    tops = {name.split("/")[0].split("-")[0] for name in names}
    assert tops == {"hccs"}
    assert wheel.stat().st_size <= LARGEST


def test_all_distributions_and_the_citation_have_one_version():
    cited = re.search(r"^version: \"?([\d.]+)", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[1]
    assert hccs.__version__ == hccs_aie.__version__ == hccs_lab.__version__ == cited


def test_every_module_and_data_file_of_the_package_is_in_it(wheel):
    tracked = subprocess.run(
        ["git", "ls-files", "src/hccs"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {line.removeprefix("src/") for line in tracked.stdout.splitlines()}
    missing = {
        name for name in wanted - names if not any(fnmatch(name, pattern) for pattern in MUST_NOT_HOLD)
    }
    assert missing == set()


def test_its_examples_run_in_an_environment_with_numpy_alone(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*install, str(wheel)], check=True)
    lend_numpy(python)
    # Isolated: neither this checkout nor the caller's PYTHONPATH is in sight.
    done = subprocess.run(
        [str(python), "-I", str(ROOT / "tools" / "check_installed.py"), str(ROOT / "README.md")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {environment.resolve()}" in done.stdout
    assert ", 0 failed" in done.stdout
    refused = subprocess.run([str(environment / "bin" / "hccs")], capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "pip install" in refused.stderr


COMMANDS = [("aie", "hccs-aie"), ("bench", "hccs-lab"), ("demo", "hccs-lab"), ("reproduce", "hccs-lab")]


@pytest.mark.parametrize(("command", "distribution"), COMMANDS)
def test_a_command_of_a_missing_distribution_says_what_to_install(command, distribution):
    program = (
        "import importlib.metadata as m, sys; m.entry_points = lambda **_: (); "
        "sys.modules.update(hccs_aie=None, hccs_lab=None); from hccs.cli import main; main()"
    )
    run = [sys.executable, "-c", program, command, "any", "--option"]
    refused = subprocess.run(run, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and f"pip install {distribution}" in refused.stderr


def lend_numpy(python: Path) -> None:
    """Links to the NumPy of this environment: the index is not asked, and nothing else comes along."""
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lender = Path(np.__file__).parents[1]
    for part in [lender / "numpy", *lender.glob("numpy.libs"), *lender.glob("numpy-*.dist-info")]:
        (Path(site) / part.name).symlink_to(part)
