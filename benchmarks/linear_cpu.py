"""What share of the processor's peak do the int8 linear kernels reach, with what follows them? One thread.

The peak is that of VNNI, or of AMX where that is in use, measured in the same run on sums that never leave
their registers. Contenders of a line are timed in turns and keep their best times; packing of weights is not
timed, as it is done once.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from provenance import write_json
from turns import best_times

from hccs.backends.cpu import _native
from hccs.backends.cpu import instruction_sets as isa

BERT_SMALL = (
    (512, 1536),
    (512, 512),
    (512, 2048),
    (2048, 512),
)  # inputs, outputs: q k v, output, feed-forward
ROWS = (64, 128, 512, 1024, 4096)
SQUARES = tuple((size, size) for size in (128, 256, 1024, 2048))
OUTPUTS = _native.LINEAR_OUTPUTS
BARS = {"avx512": (((128, 512, 512), (1024, 512, 512)), 0.9), "amx": (((1024, 768, 768),), 0.6)}
SECONDS = 0.004  # of one contender's turn


def peak_of_products() -> Callable[[], float] | None:
    """Measures byte products per second, AMX's where it is in use; None without a compiler or VNNI."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    cpuinfo = Path("/proc/cpuinfo")
    if not compiler or not cpuinfo.exists() or "avx512_vnni" not in cpuinfo.read_text():
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        source = Path(__file__).with_name("products_peak.cpp")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        tiles = "tile_" if isa.info().isa == "amx" else ""
        function = getattr(ctypes.CDLL(str(library)), f"{tiles}products_per_second")
    function.restype = ctypes.c_double
    return function


def ours(rows: int, inputs: int, outputs: int) -> dict[str, Callable[[], object]]:
    """One call per kind of output. x is in the form that costs nothing, as an engine would have it."""
    rng = np.random.default_rng(0)
    weight = np.clip(np.rint(rng.normal(0, 35, (outputs, inputs))), -127, 127).astype(np.int8)
    bias = rng.integers(-1000, 1000, outputs).astype(np.int32)
    multiplier = rng.integers(20, 60, outputs).astype(np.int32)
    packed = _native.PackedLinear(weight, bias, multiplier)
    plain = np.clip(np.rint(rng.normal(0, 40, (rows, inputs))), -127, 127).astype(np.int8)
    x = plain.view(np.uint8) ^ 0x80 if isa.info().isa in ("avx512", "amx") else plain
    table = rng.integers(-127, 128, 256).astype(np.int8)
    stream = rng.integers(-20000, 20000, (rows, outputs)).astype(np.int16)

    def call(output: str) -> Callable[[], object]:
        dtype = (
            np.int32
            if output.endswith(("int32", "long"))
            else np.int16
            if output.endswith("int16")
            else np.int8
        )
        out = np.empty((rows, outputs), dtype)
        number = OUTPUTS.index(output)
        return lambda: packed.run(x, number, table, stream, out, 1)

    return {output: call(output) for output in OUTPUTS}


def onnx_runtime(rows: int, inputs: int, outputs: int) -> dict[str, Callable[[], object]]:
    """ONNX Runtime's int8 products with weights known at load: int32 sums, and bytes."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return {}
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-127, 128, (inputs, outputs)).astype(np.int8),
        "zero": np.array(128, np.uint8),
        "none": np.zeros(outputs, np.int8),
        "step": np.array(0.02, np.float32),
        "steps": rng.uniform(0.001, 0.002, outputs).astype(np.float32),
    }
    x = rng.integers(0, 256, (rows, inputs)).astype(np.uint8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    calls: dict[str, Callable[[], object]] = {}
    for name, operator, arguments, element in (
        ("MatMulInteger", "MatMulInteger", ["x", "w", "zero", "none"], TensorProto.INT32),
        (
            "QLinearMatMul",
            "QLinearMatMul",
            ["x", "step", "zero", "w", "steps", "none", "step", "zero"],
            TensorProto.UINT8,
        ),
    ):
        graph = helper.make_graph(
            [helper.make_node(operator, arguments, ["y"])],
            name,
            [helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, inputs])],
            [helper.make_tensor_value_info("y", element, [rows, outputs])],
            [numpy_helper.from_array(value, key) for key, value in constants.items() if key in arguments],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "cpu")
        calls[f"ORT {name}"] = lambda session=session, binding=binding: session.run_with_iobinding(binding)
    return calls


def measure(shape: tuple[int, int, int], peak: Callable[[], float] | None, turns: int) -> dict[str, float]:
    """Byte products per second of each contender, and of the peak."""
    calls = ours(*shape) | onnx_runtime(*shape)
    rates: dict[str, float] = {}
    for _ in range(turns):  # the peak among them: a neighbour on the same core slows all of them
        for name, seconds in best_times(calls, 1, SECONDS).items():
            rates[name] = max(rates.get(name, 0.0), float(np.prod(shape) / seconds))
        if peak:
            rates["peak"] = max(rates.get("peak", 0.0), peak())
    return rates


def shapes_of(arguments: argparse.Namespace) -> list[tuple[int, int, int]]:
    if arguments.shapes:
        return [tuple(int(n) for n in shape.split("x")) for shape in arguments.shapes]
    shapes = [(rows, *layer) for rows in ROWS for layer in BERT_SMALL]
    bars = BARS.get(isa.info().isa, ((), 0))[0]
    return [*bars, *(shape for shape in shapes if shape not in bars), *((512, *square) for square in SQUARES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", metavar="MxKxN", help="rows x inputs x outputs")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--isa", default="", choices=["", *isa.available()], help="one other than the fastest"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    isa.select(arguments.isa)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peak = peak_of_products()
    print(f"{isa.info().isa}; share of the peak" if peak else f"{isa.info().isa}; G products per second")
    names = [*OUTPUTS, *onnx_runtime(1, 4, 4)]
    print(f"{'M x K x N':>16}" + "".join(f"{name:>18}" for name in names), flush=True)
    found = {}
    for shape in shapes_of(arguments):
        key = "x".join(map(str, shape))
        found[key] = rates = measure(shape, peak, arguments.turns)
        unit = rates["peak"] if peak else 1e9
        print(f"{key:>16}" + "".join(f"{rates[name] / unit:18.3f}" for name in names), flush=True)
    bars = []
    shapes, bar = BARS.get(isa.info().isa, ((), 0.0))
    for rows, inputs, outputs in shapes:
        rates = found.get(f"{rows}x{inputs}x{outputs}")
        if rates and peak:
            name = f"int8, {rows} rows, {inputs} x {outputs}, share of the peak of {isa.info().isa}"
            bars.append([name, rates["int8"] / rates["peak"], bar])
            print(f"{name}: {bars[-1][1]:.3f} (bar {bar})", flush=True)
    found_on = isa.info().isa
    isa.select("")
    if arguments.json:
        write_json(arguments.json, {"isa": found_on, "rates": found, "bars": bars})


if __name__ == "__main__":
    main()
