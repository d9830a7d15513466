"""A known call starts its kernels with the arguments of the first call, but for addresses.

Stand-ins take the place of kernels and record their arguments: no kernel starts without a GPU.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import hccs
from hccs._extras import TRITON, is_tried_triton
from hccs.backends.triton.attention import launch, launch_plan, plans
from hccs.backends.triton.attention.tuning import Kernel
from hccs.ops import arguments, copies
from tests.backends.known_calls import stood_in_for

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")


class Recorded:
    """In a kernel's place: the arguments of its first start, and of those past Triton."""

    def __init__(self, kernel):
        self.arg_names, self.first, self.later = kernel.arg_names, None, None

    def __getitem__(self, grid):
        def start(*given, **options):
            self.grid = (*grid, *[1] * (3 - len(grid)))
            self.first = given, options
            return SimpleNamespace(run=self.run, function="function", packed_metadata="metadata")

        return start

    def run(self, x, y, z, stream, function, metadata, *rest):
        assert (x, y, z) == self.grid
        assert (stream, function, metadata, *rest[:3]) == (
            "stream 3",
            "function",
            "metadata",
            None,
            None,
            None,
        )
        self.later = rest[3:]


@pytest.fixture
def started(monkeypatch):
    """The kernels of the last plan and its tuning, for a Hopper that is not there."""
    monkeypatch.setattr(plans, "capability", lambda _: (9, 0))
    monkeypatch.setattr(plans, "multiprocessors", lambda _: 2)
    return stood_in_for(monkeypatch, Recorded)


def plainly(argument):
    """Tensors as their addresses."""
    return argument.data_ptr() if torch.is_tensor(argument) else argument


CASES = {
    "one block": (64, 64, None, {}, Kernel.TILES),
    "a length": (128, 128, [[[5]], [[128]]], {}, Kernel.TILES),
    "lengths": (300, 300, [[[5] * 300] * 4, [[300] * 300] * 4], {"causal": True}, Kernel.TILES),
    "two passes": (256, 1000, None, {"mode": hccs.Mode.U8_LIN}, Kernel.TILES),
    "two passes, causal": (640, 900, None, {"causal": True, "out": "pair"}, Kernel.TILES),
    "512 keys": (512, 512, None, {}, Kernel.KEYS_IN_SHARED_MEMORY),
    "256 keys": (256, 256, None, {}, Kernel.KEYS_IN_SHARED_MEMORY),
    "256 keys, causal": (256, 256, None, {"causal": True}, Kernel.KEYS_IN_SHARED_MEMORY),
    "pipelined": (1024, 1024, None, {"causal": True}, Kernel.PIPELINED),
    "one query": (1, 4096, None, {"out": "pair"}, Kernel.SPLIT_KEYS),
    "one query, a length": (1, 600, [[[5]], [[600]]], {"out": "int8"}, Kernel.SPLIT_KEYS),
    "one query of many heads": (1, 600, None, {"fills_gpu": True}, Kernel.ONE_QUERY),
    "three queries": (3, 2100, [[[5]], [[2100]]], {"causal": True}, Kernel.SPLIT_KEYS),
}
IN_GLUON = (Kernel.KEYS_IN_SHARED_MEMORY, Kernel.PIPELINED)


@pytest.mark.parametrize("case", CASES)
def test_the_same_launch_on_other_tensors(case, started, monkeypatch):
    nq, nk, lengths, options, kernel = CASES[case]
    options = {"causal": False, "mode": None, "out": "float32", **options}
    fills_gpu = options.pop("fills_gpu", False)
    monkeypatch.setattr(plans, "_fills_gpu", lambda *_: fills_gpu)
    theta, requant = hccs.HeadParams([min(32767 // nk, 2000)] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v = (torch.zeros(2, 4, n, 64, dtype=torch.int8) for n in (nq, nk, nk))
    others = [x.clone() for x in (q, k, v)]  # laid out alike
    masking, valid = arguments.NO_MASK, None
    if lengths is not None:
        lengths = torch.tensor(lengths, dtype=torch.int32)
        masking, valid = arguments.LENGTHS, copies.copied(lengths, q.device, nk)
    first = launch.attention(q, k, v, theta, requant, masking, valid, **options)
    second = launch.again(*others, theta, requant, lengths, **options)
    *kernels, tuning = started
    without_gluon = kernel in IN_GLUON and plans.shared_memory is None
    assert tuning.kernel is (Kernel.TILES if without_gluon else kernel)
    pairs = [(q, others[0]), (k, others[1]), (v, others[2])]
    pairs += zip(*(x if options["out"] == "pair" else (x,) for x in (first, second)), strict=True)
    assert_alike(kernels, pairs)


@pytest.mark.parametrize("shape", [(2, 1, 80, 80), (2, 1, 1, 80), (80, 80), (4, 1, 1)])
def test_the_same_launch_with_another_mask(shape, started, monkeypatch):
    """The bits of the mask that is given are packed."""
    packed = []

    def pack(mask, keys, most):
        packed.append((mask, torch.zeros((*mask.shape[:-1], 4), dtype=torch.int32)))
        return packed[-1][1]

    monkeypatch.setattr(launch, "packed", pack)
    theta, requant = hccs.HeadParams([300] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v, *others = torch.zeros(6, 2, 4, 80, 64, dtype=torch.int8)
    masks = torch.rand(shape) < 0.5, torch.rand(shape) < 0.5
    for mask in masks:
        copies.copied(mask, q.device, 80)
    first = launch.attention(q, k, v, theta, requant, arguments.MASK, masks[0])
    again = partial(launch.again, *others, theta, requant, causal=False, mode=None, out="float32")
    assert again(masks[1][:1]) is None  # of another shape
    second = again(masks[1])
    assert torch.equal(packed[0][0], masks[0]) and torch.equal(packed[1][0], masks[1])
    *kernels, _ = started
    bits = packed[0][1], packed[1][1]
    assert_alike(kernels, [*zip((q, k, v), others, strict=True), (first, second), bits])


def assert_alike(kernels, pairs):
    """Both starts of every kernel, but for the addresses of pairs of tensors."""
    moved = {before.data_ptr(): after.data_ptr() for before, after in pairs}
    for kernel in kernels:
        given, fixed = kernel.first
        assert fixed["enable_fp_fusion"] is True  # not left to Triton's version
        expected = [*map(plainly, given), *(fixed[name] for name in kernel.arg_names[len(given) :])]
        for name, before, after in zip(kernel.arg_names, expected, map(plainly, kernel.later), strict=True):
            if name.endswith("_ptr"):
                before = moved.get(before, before)
            assert before == after or name == "scratch_ptr", name


def test_a_triton_that_was_not_tried_launches_by_its_public_interface(started, monkeypatch):
    monkeypatch.setattr(launch_plan.triton, "__version__", "4.0.0")
    theta, requant = hccs.HeadParams([300] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v = torch.zeros(3, 2, 4, 80, 64, dtype=torch.int8)
    for _ in range(2):
        launch.attention(q, k, v, theta, requant)
        assert launch.again(q, k, v, theta, requant, None, False, None, "float32") is None
    (kernel, _) = started
    assert kernel.first is not None and kernel.later is None


@pytest.mark.skipif(
    not is_tried_triton(triton.__version__) or sys.platform != "linux" or shutil.which("cc") is None,
    reason="Triton, Linux or a C compiler is missing, or is another",
)
def test_this_tritons_launches_are_those_of_known_calls(tmp_path):
    """By the arguments that reach a CUDA driver, which starts nothing."""
    library = tmp_path / "libcuda.so.1"
    source = Path(__file__).with_name("cuda_driver.c")
    named = f"-Wl,-soname,{library.name}"
    subprocess.run(["cc", "-shared", "-fPIC", named, "-o", library, source], check=True)
    places = {"TRITON_LIBCUDA_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.started_twice", library],
        env=os.environ | places, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "_by_factors", "attention_in_one_pass", "logits_of_split", "sums_of_split", "attention_of_all_keys",
        "attention_pipelined",
    ]  # fmt: skip


def test_the_range_of_versions_that_are_tried():
    assert [*map(is_tried_triton, ("3.6.0", "3.9.1+git12", "3.7.0rc1"))] == [True] * 3
    assert not any(map(is_tried_triton, ("3.5.1", "3.10.0", "4.0", "", "unknown")))
    (first, (major, minor)) = TRITON
    asked = f"triton>={first[0]}.{first[1]},<{major}.{minor + 1};"
    assert asked in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


GROWING = dict(causal=False, mode=None, out="float32")


@pytest.mark.parametrize("fills_gpu", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_a_growing_cache_makes_a_plan_per_class_of_lengths(fills_gpu, kv_heads, started, monkeypatch):
    """Each step passes its own number of keys and its own addresses, and the strides of its own tensors."""
    monkeypatch.setattr(plans, "_fills_gpu", lambda *_: fills_gpu)
    theta, requant = hccs.HeadParams([30] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, calls = torch.zeros(2, 4, 1, 64, dtype=torch.int8), 0
    for nk in range(1, 601):
        k, v = torch.zeros(2, 2, kv_heads, nk, 64, dtype=torch.int8)  # of its own strides at every step
        if launch.again(q, k, v, theta, requant, None, **GROWING) is None:
            launch.attention(q, k, v, theta, requant, **GROWING)
            calls += 1
            continue
        for kernel in started[:-1]:
            given = dict(zip(kernel.arg_names, kernel.later, strict=True))
            unit = 4 if started[-1].kernel is Kernel.ONE_QUERY else 1
            assert given["nk"] == nk
            assert all(given.get(name, k.stride(0) // unit) == k.stride(0) // unit for name in ("k0", "v0"))
            assert all(given.get(name, k.stride(1) // unit) == k.stride(1) // unit for name in ("k1", "v1"))
    assert calls == len(launch._known) == 5


def test_a_growing_cache_is_refused_where_its_parameters_end(started):
    """A known call takes no more keys than the sums of its parameters allow."""
    theta, requant = hccs.HeadParams([80] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    most = theta.max_columns
    q, cache = torch.zeros(2, 4, 1, 64, dtype=torch.int8), torch.zeros(2, 2, 4, 512, 64, dtype=torch.int8)
    assert 256 < most < 512
    launch.attention(q, *cache[:, :, :, : most - 1], theta, requant, **GROWING)
    assert launch.again(q, *cache[:, :, :, :most], theta, requant, None, **GROWING) is not None
    assert launch.again(q, *cache[:, :, :, : most + 1], theta, requant, None, **GROWING) is None


@pytest.mark.parametrize("version", [None, "2.1.0"])
def test_a_gpu_without_a_tried_triton_is_told_what_to_install(version):
    """2.1.0 stands for a Triton without what the kernels name."""
    program = f"""
import sys, types
version = {version!r}
known = None if version is None else types.ModuleType("triton")
if known:
    known.__version__, known.__path__ = version, []
sys.modules["triton"] = known
from hccs.errors import MissingExtraError
from hccs.ops.dispatch import backend
try:
    backend("softmax", "cuda")
except MissingExtraError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "Triton 3.6 to 3.9" in told and "pip install 'hccs[cuda]'" in told
    assert version is None or f"Triton {version}" in told
