"""NEON, under an emulator: the kernel is cross-compiled and replays cases recorded from the reference."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hccs
from hccs.numbers.layers import NormParams
from hccs.reference.attention import attention as reference_attention
from hccs.reference.layer_norm import layer_norm, root_of, root_shift
from hccs.reference.linear import add, linear_rows, narrow, narrow_rows
from hccs.reference.softmax import softmax as reference_softmax
from tests.backends import test_linear
from tests.conftest import logits

ROOT = Path(__file__).parents[2]
CPU = ROOT / "src/hccs/backends/cpu/native"
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")

pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR),
    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64 (g++-aarch64-linux-gnu, qemu-user)",
)


# Half the time of -O1 to compile, and no slower where it is emulated.
FLAGS = ["-std=c++20", "-Og", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", "-DHCCS_NEON", f"-I{CPU}"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the replaying programs; each kernel is compiled as it is in the package."""
    folder = tmp_path_factory.mktemp("neon")
    march = {"neon": "armv8.2-a+dotprod", "i8mm": "armv8.2-a+dotprod+i8mm"}
    special = {
        f"{kernel}/{isa}": [f"-march={flags}"]
        for kernel in ("attention", "linear")
        for isa, flags in march.items()
    }
    objects = []
    for name in (
        "common/instruction_sets",
        "common/interruption",
        "common/tiles",
        "float_logits/scalar",
        "softmax/run",
        "attention/run",
        "softmax/scalar",
        "softmax/neon",
        "attention/scalar",
        "attention/neon",
        "attention/i8mm",
        "linear/run",
        "linear/scalar",
        "linear/neon",
        "linear/i8mm",
        "linear/amx_model",
        "engine/scalar",
        "engine/neon",
        "top_k/scalar",
    ):
        objects.append(folder / f"{name.replace('/', '_')}.o")
        compile_one = [COMPILER, *FLAGS, *special.get(name, []), "-c", CPU / f"{name}.cpp", "-o", objects[-1]]
        subprocess.run(compile_one, check=True)
    for name in ("replay", "replay_attention", "replay_linear", "replay_norm"):
        main = ROOT / f"tests/native/{name}.cpp"
        subprocess.run(
            [COMPILER, *FLAGS, "-static", main, *objects, "-pthread", "-o", folder / name], check=True
        )
    return folder


def replay(program, recorded, isa, expected, cpu=None):
    """Runs a program on recorded cases, on an emulated processor, and compares what it says."""
    emulator = [EMULATOR] if cpu is None else [EMULATOR, "-cpu", cpu]
    result = subprocess.run([*emulator, program, recorded, isa], capture_output=True, text=True)
    assert result.stdout == expected, result.stdout + result.stderr


def record(file, x, theta, mode, valid):
    """One case in the order in which replay.cpp reads it."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2]
    modes = [candidate.value for candidate in hccs.Mode]
    masking, selection = 0, np.zeros((0,), np.int8)
    if valid is not None:
        masking = 2 if valid.dtype == bool else 1
        selection = valid if valid.dtype == bool else valid.astype(np.int32)
    shared = masking and selection.size == (columns if masking == 2 else 1)
    header = [rows, columns, modes.index(mode), masking, x.shape[0], x.shape[1], 1 if shared else rows]
    header.append(theta.packed.shape[-1])
    file.write(np.array(header, np.int64).tobytes())
    file.write(x.tobytes() + theta.packed.tobytes() + np.arange(x.shape[0], dtype=np.int32).tobytes())
    file.write(selection.tobytes() + reference_softmax(x, theta, mode, valid).tobytes())


@pytest.fixture(scope="module")
def softmax_cases(tmp_path_factory):
    rng, file, cases = np.random.default_rng(0), io.BytesIO(), 0
    for columns, queries, mode in itertools.product(
        [1, 15, 16, 17, 32, 40, 64, 128, 200], [3, 17], hccs.Mode
    ):
        region = hccs.Region(columns)
        D = rng.integers(1, 128, 3)
        S = np.array([rng.integers(0, region.max_slope(int(d)) + 1) for d in D])
        B = rng.integers(S * D + region.floor, region.max_base + 1)
        small = hccs.HeadParams(3, 1, 3)
        thetas = [hccs.HeadParams(B, S, D), hccs.HeadParams([small.B] * 3, [small.S] * 3, [small.D] * 3)]
        thetas.append(
            hccs.HeadParams(
                [1023, 2047, 32767], [4, 5, 0], [50, 90, 127], [40, 20, 127], [20, 60, 127], [2, 0, 0]
            )
        )
        thetas.append(hccs.HeadParams([5, 9, 255], [0, 1, 1], [1, 5, 100], [0, 3, 1], [1, 1, 9], [1, 0, 3]))
        x = logits(columns, (3, queries, columns))
        selections = [
            None,
            rng.integers(0, columns + 1, (3, queries)),
            np.array(columns // 2),
            rng.random(x.shape) < 0.6,
            rng.random(columns) < 0.6,
        ]
        for theta, valid in itertools.product(thetas, selections):
            record(file, x, theta, mode.value, valid)
            cases += 1
    path = tmp_path_factory.mktemp("softmax") / "cases"
    path.write_bytes(np.int64(cases).tobytes() + file.getvalue())
    return path, cases


@pytest.mark.parametrize("isa", ["neon", "scalar"])
def test_replayed_cases_agree(programs, softmax_cases, isa):
    path, cases = softmax_cases
    replay(programs / "replay", path, isa, f"{cases} cases agree\n")


def record_attention(file, arrays, theta, requant, reach=None, **options):
    """One case in the order in which replay_attention.cpp reads it."""
    q, k, v = arrays
    groups, nq, d = q.shape
    valid, mode, out = options.get("valid"), options.get("mode"), options["out"]
    rows = np.zeros(0, np.int8)
    if valid is not None:
        rows = valid if valid.dtype == bool else valid.astype(np.int32)
    masking = 0 if valid is None else 2 if valid.dtype == bool else 1
    causal, unlimited = options.get("causal", False), 2**31 - 1
    before, after = reach or (unlimited, 0 if causal else unlimited)
    if reach:
        behind = np.arange(nq)[:, None] + k.shape[1] - nq - np.arange(k.shape[1])
        options["valid"] = np.broadcast_to((behind <= before) & (-behind <= after), (groups, nq, k.shape[1]))
    expected = reference_attention(*arrays, theta, requant, **options)
    outputs = expected if out == "pair" else (expected,)
    kind = {"pair": 0, "float32": 1, "int8": 2}[out]
    number = -1 if mode is None else list(hccs.Mode).index(hccs.Mode(mode))
    header = [groups, nq, k.shape[1], d, masking, before, after, number, kind, outputs[0].nbytes]
    header.append(theta.packed.shape[-1])
    file.write(np.array(header, np.int64).tobytes())
    for array in (q, k, v, theta.packed, requant.packed, rows, *outputs):
        file.write(array.tobytes())


@pytest.fixture(scope="module")
def attention_cases(tmp_path_factory):
    rng, file, cases = np.random.default_rng(0), io.BytesIO(), 0
    for (nq, nk, d), mode in itertools.product(
        [(1, 1, 1), (5, 17, 3), (16, 64, 64), (18, 131, 20), (3, 300, 65)], [None, "u8_div", "u8_clb"]
    ):
        arrays = [logits(nk + i, (2, n, d), 60.0) for i, n in enumerate((nq, nk, nk))]
        region = hccs.Region(nk)
        theta = hccs.HeadParams([region.max_base] * 2, [region.max_slope(90), region.max_slope(20)], [90, 20])
        thetas = [theta, hccs.HeadParams([1023, 240], [4, 1], [50, 100], [40, 2], [20, 60], [2, 0])]
        thetas.append(hccs.HeadParams([2047, 32767], [5, 0], [90, 127], [20, 127], [60, 127]))
        thetas.append(hccs.HeadParams([2000, 9], [15, 1], [127, 5], wide=True))
        factors = hccs.FixedPoint([2**24 - 1, 3], [38, 9])
        requant = hccs.Requant(factors, [0.3, 2.0], hccs.FixedPoint([2**23, 2**24 - 1], [23, 47]))
        for theta, options, out in itertools.product(
            thetas,
            [
                {},
                {"causal": nq <= nk},
                {"valid": rng.integers(0, nk + 1, (2, nq))},
                {"valid": rng.random((2, nq, nk)) < 0.6},
            ],
            ["pair", "float32", "int8"],
        ):
            record_attention(file, arrays, theta, requant, mode=mode, out=out, **options)
            cases += 1
        for theta, reach, out in itertools.product(thetas, [(64, 64), (0, 3), (90, 0)], ["pair", "int8"]):
            if mode is None and nq <= nk:
                record_attention(file, arrays, theta, requant, reach, out=out)
                cases += 1
    path = tmp_path_factory.mktemp("attention") / "cases"
    path.write_bytes(np.int64(cases).tobytes() + file.getvalue())
    return path, cases


PROCESSORS = [
    ("i8mm", "max", "vector"),
    ("neon", "max", "vector"),
    ("neon", "cortex-a57", "portable"),
    ("scalar", "max", "portable"),
]


@pytest.mark.parametrize(("isa", "cpu", "kernel"), PROCESSORS)
def test_replayed_attention_agrees(programs, attention_cases, isa, cpu, kernel):
    # A Cortex-A57 has no dot product: there the portable kernel must be chosen.
    path, cases = attention_cases
    replay(programs / "replay_attention", path, isa, f"{cases} cases agree, {kernel}\n", cpu)


def record_linear(file, rng, x, layer, output, forms):
    """One case in the order in which replay_linear.cpp reads it; rows of x may end in an exponent."""
    turned_x, turned_out = forms
    outputs, inputs = layer.weight.shape
    exponents = x.shape[1] > inputs
    _, (table, stream) = test_linear.extras(rng, output, (len(x), outputs))
    expected = linear_rows(x, layer) if exponents else test_linear.expected(x, layer, output, table, stream)
    if turned_x:
        x = np.concatenate([test_linear.turned(x[:, :inputs]), x[:, inputs:].view(np.uint8)], axis=1)
    turned_out = turned_out and expected.dtype == np.int8
    kind = test_linear.OUTPUTS.index(output)
    given = [table is not None, stream is not None]
    header = [len(x), inputs, outputs, kind, turned_x, turned_out, *given, exponents, expected.nbytes]
    file.write(np.array(header, np.int64).tobytes())
    multiplier = np.ones(outputs, np.int32) if layer.multiplier is None else layer.multiplier
    for array in (layer.weight, layer.bias, multiplier, x):
        file.write(array.tobytes())
    for array in (table, stream, test_linear.turned(expected) if turned_out else expected):
        file.write(b"" if array is None else array.tobytes())


def enlarged(layer):
    """The layer with multipliers as row exponents ask for, 2^7 or more, for a shift of 23 instead of 16."""
    multiplier = np.clip(layer.multiplier.astype(np.int64) * 16, 2**7, 2**24 - 1).astype(np.int32)
    return replace(layer, multiplier=multiplier)


@pytest.fixture(scope="module")
def linear_cases(tmp_path_factory):
    rng, file, cases = np.random.default_rng(0), io.BytesIO(), 0
    for output in test_linear.OUTPUTS:
        shapes = [(1, 1, 1), (5, 64, 48), (13, 30, 17), (2, 2048, 16), (250, 512, 20)]
        layers = [(n, test_linear.random_layer(rng, output, k, m)) for n, k, m in shapes]
        layers.append((256, test_linear.magnitudes(rng, output, 400)))
        for (count, layer), forms in itertools.product(layers, itertools.product([False, True], repeat=2)):
            x = test_linear.rows(rng, count, layer.weight.shape[1])
            record_linear(file, rng, x, layer, output, forms)
            cases += 1
            if output in ("int32", "int8", "int16", "long"):
                large = layer if layer.multiplier is None else enlarged(layer)
                exponents = rng.integers(0, 17, (count, 1)).astype(np.int8)
                record_linear(file, rng, np.concatenate([x, exponents], axis=1), large, output, forms)
                cases += 1
    path = tmp_path_factory.mktemp("linear") / "cases"
    path.write_bytes(np.int64(cases).tobytes() + file.getvalue())
    return path, cases


@pytest.mark.parametrize(("isa", "cpu", "kernel"), [*PROCESSORS, ("amx-model", "max", "vector")])
def test_replayed_linear_layers_agree(programs, linear_cases, isa, cpu, kernel):
    path, cases = linear_cases
    replay(programs / "replay_linear", path, isa, f"{cases} cases agree, {kernel}\n", cpu)


def record_norm(file, rng, h, limit, bits, turned):
    """One case in the order in which replay_norm.cpp reads it."""
    gain_bits = int(rng.integers(0, 17))
    reach = int(rng.integers(1, 2**23))
    epsilon = int(rng.integers(1, 2 ** int(rng.integers(1, 62))))
    gain, bias = (rng.integers(-r, r, h).astype(np.int32) for r in (reach, 2**31 - 1 if bits == 8 else 2**12))
    params = NormParams(gain, bias, gain_bits, epsilon)
    a, b = (np.rint(rng.normal(0, 12000, (9, h))).clip(-32767, 32767).astype(np.int16) for _ in range(2))
    a[0], b[0] = 5, 7  # a constant row; one outlier; all saturated
    a[1] = b[1] = 0
    a[1, 0] = 32767
    a[2] = b[2] = rng.choice([-32767, 32767], h)
    v = add(a, b, limit or None)
    out = layer_norm(v, params)
    narrowed = (narrow_rows(out) if bits < 0 else narrow(out, bits)).astype(np.int8)
    narrowed[:, :h] ^= -128 if turned else 0
    header = [len(a), h, gain_bits, epsilon, root_of(h), root_shift(h), limit, bits, turned]
    file.write(np.array(header, np.int64).tobytes())
    for array in (gain, bias, a, b, *([v] if limit else []), out, narrowed):
        file.write(array.tobytes())


@pytest.mark.parametrize("isa", ["neon", "i8mm", "scalar"])
def test_replayed_layer_norms_agree(programs, tmp_path, isa):
    rng, file, cases = np.random.default_rng(0), io.BytesIO(), 0
    for h, limit, bits in itertools.product([2, 5, 16, 130, 1024], [0, 32767, 20000], [-1, 0, 7, 8, 15]):
        for turned in (False, True):
            record_norm(file, rng, h, limit, bits, turned)
            cases += 1
    path = tmp_path / "cases"
    path.write_bytes(np.int64(cases).tobytes() + file.getvalue())
    replay(programs / "replay_norm", path, isa, f"{cases} cases agree\n", "max")
