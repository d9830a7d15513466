"""Programs that end in unit vectors, in C and in ONNX Runtime: the reference's bits, extremes included."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hccs.errors import DataError, ParameterError
from hccs.executors.c import write as c_write
from hccs.export import export_c_model
from hccs.numbers.layers import LinearParams, RampParams
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.reference.linear import linear_rows, narrow_rows
from hccs.reference.pooling import pool, unit
from hccs.reference.table import ramp
from tests.export.compilers import COMPILERS, in_c, make, require_pass
from tests.program.programs import Builder, gelu, random_batch, random_embedder

SOURCES = Path(c_write.__file__).parent / "sources"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def images(pooling: str) -> Program:
    """Pooled patches, or with "tokens" a vector for each."""
    built = Builder(5)
    x = built.norm(built.patches(13))
    if pooling != "tokens":
        x = built.add(op.Pool, (x,), 13, pooling, True)
    built.add(op.Unit, (x,), 7, 7)
    return built.program(0)


def first_exponents() -> Program:
    """The first token of rows with exponents, whose other rows a layer reads too."""
    built = Builder(6)
    x = built.norm(built.embed(24, None))
    rows = built.add(op.NarrowRows, (x,), 24)
    layer = built.layer(72, 24)
    factors = np.maximum(layer.multiplier, 128)
    qkv = built.add(op.Linear, (rows,), 72, LinearParams(layer.weight, layer.bias, factors))
    context = built.linear(built.attend(qkv, 2, False), 24, 32767)
    y = built.add(op.NarrowRows, (built.norm(built.sum(x, context)),), 24)
    first = built.add(op.First, (y,), 24)
    layer = built.layer(9, 24, 32767)
    factors = np.maximum(layer.multiplier, 128)
    out = built.add(op.Linear, (first,), 9, LinearParams(layer.weight, layer.bias, factors, 32767))
    built.add(op.Unit, (out,), 9, 9)
    return built.program(0)


def others() -> dict[str, Program]:
    made = {f"images, {pooling}": images(pooling) for pooling in ("mean", "last", "max", "tokens")}
    return {**made, "exponents of the first token": first_exponents()}


def test_random_embedders_take_every_path() -> None:
    steps = [step for seed in range(21) for step in random_embedder(seed).operators]
    pools = {(step.pooling, step.divided) for step in steps if isinstance(step, op.Pool)}
    assert pools == {(kind, divided) for kind in ("mean", "last", "max") for divided in (False, True)}
    assert {random_embedder(seed).per_token for seed in range(21)} == {True, False}
    assert any(isinstance(step, op.First) for step in steps)
    read = {
        random_embedder(seed).values[random_embedder(seed).operators[-1].inputs[0]].bits for seed in range(21)
    }
    assert read == {8, 16, 32}


@in_c
@pytest.mark.parametrize("seed", range(21))
def test_random_embedders_in_c(seed: int, tmp_path: Path) -> None:
    """Sequences of one token, of all and of lengths between, sanitized."""
    written = export_c_model(IntegerModel(random_embedder(seed)), tmp_path / "c")
    require_pass(make(written.folder, "sanitize", f"CC={COMPILERS[seed % len(COMPILERS)]}"), 12, "values")


@in_c
@pytest.mark.parametrize("name", others())
def test_other_embedders_in_c(name: str, tmp_path: Path) -> None:
    program = others()[name]
    written = export_c_model(IntegerModel(program), tmp_path / "c")
    count = 12 if program.embed.image is None else 3
    require_pass(make(written.folder, "sanitize"), count, "values")
    header = (written.folder / "hccs_model.h").read_text()
    dims = program.values[program.operators[-1].output].width
    assert f"#define HCCS_MODEL_DIMS {dims}\n" in header and "LABELS" not in header


@in_c
def test_a_vector_model_has_no_floating_point(tmp_path: Path) -> None:
    written = export_c_model(IntegerModel(random_embedder(0)), tmp_path / "c")
    done = make(written.folder, "nofloat")
    assert done.returncode == 0 and "none of floating point" in done.stdout, done.stdout + done.stderr


@in_c
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hccs_operators.h", "* rest + (1 << 14)", "* rest"),
        ("hccs_operators.h", "hccs_leading_bit(largest) - 6", "hccs_leading_bit(largest) - 5"),
        ("hccs_operators.h", "(uint32_t)(23 - e)", "(uint32_t)(22 - e)"),
    ],
)
def test_the_check_of_vectors_notices_what_is_wrong(tmp_path: Path, file: str, old: str, new: str) -> None:
    written = export_c_model(IntegerModel(random_embedder(0)), tmp_path / "c")
    text = (written.folder / file).read_text()
    assert text.count(old) == 1
    (written.folder / file).write_text(text.replace(old, new))
    done = make(written.folder, "check")
    assert done.returncode != 0 and "values differ: FAIL" in done.stdout


@in_c
def test_bad_calls_leave_the_vector_alone(tmp_path: Path) -> None:
    model = IntegerModel(random_embedder(0))
    written = export_c_model(model, tmp_path / "c")
    (tmp_path / "main.c").write_text(
        r"""
#include <stdio.h>
#include "hccs_model.h"
int main(void) {
  const int32_t good[3] = {1, 2, 3}, high[2] = {1, 50};
  int16_t vector[HCCS_MODEL_DIMS] = {9, 9};
  printf("%d %d ", hccs_model_vector(good, NULL, 0, vector), hccs_model_vector(high, NULL, 2, vector));
  printf("%d %d ", vector[0], vector[1]);
  printf("%d ", hccs_model_vector(good, NULL, 3, vector));
  printf("%d", vector[1]);
  return 0;
}
"""
    )
    sources = [tmp_path / "main.c", *(written.folder / f"hccs_{part}.c" for part in ("model", "weights"))]
    subprocess.run([COMPILERS[0], f"-I{written.folder}", "-o", tmp_path / "main", *sources], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert done.stdout == f"1 2 9 9 0 {model([[1, 2, 3]]).scores[0, 1]}"


WRAPPERS = """
#include "hccs_operators.h"
#define LAYER const int8_t *w, const int32_t *b, const int32_t *m, uint32_t inputs, uint32_t outputs
void narrow_rows(const int16_t* scale, const int16_t* x, uint32_t width, uint32_t rows, int8_t* y) {
  const hccs_scales p = {scale};
  hccs_narrow_rows(&p, x, width, rows, y);
}
void linear_8(LAYER, const int8_t* x, uint32_t rows, int8_t* y) {
  const hccs_linear l = {w, b, m, inputs, outputs};
  hccs_linear_of_exponents_8(&l, x, rows, y);
}
void linear_16(LAYER, const int8_t* x, uint32_t rows, int16_t* y) {
  const hccs_linear l = {w, b, m, inputs, outputs};
  hccs_linear_of_exponents_16(&l, x, rows, y);
}
void ramp(const int16_t* knot, const int16_t* slope, uint32_t bits, const int16_t* x, uint32_t count,
          int16_t* y) {
  const hccs_ramp_pieces p = {knot, slope, bits};
  hccs_ramp(&p, x, count, y);
}
void pool(int kind, const int16_t* x, uint32_t length, uint32_t width, int16_t* y) {
  hccs_pool_16((hccs_pooling)kind, x, length, width, y);
}
void unit(const int32_t* x, uint32_t width, uint32_t dims, uint32_t rows, int16_t* y) {
  hccs_unit_32(x, width, dims, rows, y);
}
"""


class InC:
    """The operators of the C sources, called from here; undefined behaviour ends the process."""

    def __init__(self, folder: Path) -> None:
        (folder / "wrappers.c").write_text(WRAPPERS)
        flags = ["-std=c99", "-O1", "-shared", "-fPIC", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
        library = folder / "wrappers.so"
        subprocess.run(
            [COMPILERS[0], *flags, f"-I{SOURCES}", "-o", library, folder / "wrappers.c"], check=True
        )
        self.library = ctypes.CDLL(str(library))

    def call(self, name: str, *given: Any, out: np.ndarray) -> np.ndarray:
        arrays = [np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one for one in (*given, out)]
        words = [
            one.ctypes.data_as(ctypes.c_void_p) if isinstance(one, np.ndarray) else ctypes.c_uint32(one)
            for one in arrays
        ]
        getattr(self.library, name)(*words)
        return out

    def narrow_rows(self, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        rows, width = x.shape
        return self.call("narrow_rows", scale, x, width, rows, out=np.empty((rows, width + 1), np.int8))

    def linear(self, x: np.ndarray, p: LinearParams) -> np.ndarray:
        bits = 8 if p.limit == 127 else 16
        outputs, inputs = p.weight.shape
        out = np.empty((len(x), outputs), f"int{bits}")
        constants = (p.weight, p.bias, p.multiplier, inputs, outputs)
        return self.call(f"linear_{bits}", *constants, x, len(x), out=out)

    def ramp(self, x: np.ndarray, p: RampParams) -> np.ndarray:
        return self.call("ramp", p.knot, p.slope, p.bits, x, x.size, out=np.empty_like(x))

    def pool(self, x: np.ndarray, kind: str) -> np.ndarray:
        number = ("mean", "last", "max").index(kind)
        return self.call("pool", number, x, len(x), x.shape[1], out=np.empty(x.shape[1], np.int16))

    def unit(self, x: np.ndarray) -> np.ndarray:
        return self.call("unit", x, x.shape[1], x.shape[1], len(x), out=np.empty(x.shape, np.int16))


class InOnnx:
    """The nodes of each operator alone, in ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")

    def building(self, bits: int, width: int) -> Any:
        from hccs.executors.onnx.graph import Building, Tokens

        rows = op.Value(8, width, 127, exponents=8)
        values = {"x": rows if bits == 8 else op.Value(bits, width, 0), "y": rows}
        made = Building(SimpleNamespace(values=values))  # type: ignore[arg-type]
        made.made["x"], made.tokens = "x", Tokens("sizes", "mask")
        return made

    def run(self, building: Any, given: dict[str, np.ndarray], *wanted: str) -> list[np.ndarray]:
        from tests.export.test_onnx_program import run

        return run(building.graph, given, *wanted)

    def narrow_rows(self, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        from hccs.executors.onnx.linear import narrow_rows

        building = self.building(16, x.shape[1])
        out = narrow_rows(building, op.NarrowRows(("x",), "y", scale))
        values, e = self.run(building, {"x": x.astype(np.float64)}, out, building.exponents["y"])
        return np.concatenate([values.astype(np.int16) - 128, e[:, None]], axis=1).astype(np.int8)

    def linear(self, x: np.ndarray, p: LinearParams) -> np.ndarray:
        from hccs.executors.onnx.linear import linear_rows

        building = self.building(8, x.shape[1] - 1)
        building.exponents["x"] = "e"
        out = linear_rows(building, op.Linear(("x",), "y", p))
        given = {"x": (x[:, :-1].astype(np.int16) + 128).astype(np.uint8), "e": x[:, -1].astype(np.int64)}
        y = self.run(building, given, out)[0]
        return y.astype(np.int16) - 128 if p.limit == 127 else y

    def ramp(self, x: np.ndarray, p: RampParams) -> np.ndarray:
        from hccs.executors.onnx.embedding import ramp

        building = self.building(16, 1)
        out = ramp(building, op.Ramp(("x",), "y", p))
        return self.run(building, {"x": x[:, None].astype(np.float64)}, out)[0][:, 0]

    def pool(self, x: np.ndarray, kind: str) -> np.ndarray:
        """With another sequence before it in the batch, and with padding."""
        from hccs.executors.onnx.embedding import pool

        building = self.building(16, x.shape[1])
        out = pool(building, op.Pool(("x",), "y", kind, divided=True))
        padded = np.concatenate([x[::-1], x[:1], x, np.full_like(x[:1], 32767)]).astype(np.float64)
        n = len(x) + 1
        mask = np.ones((2, 1, 1, n), np.uint8)
        mask[1, ..., -1] = 0
        given = {"x": padded, "sizes": np.array([2, n]), "mask": mask}
        return self.run(building, given, out)[0][1]

    def unit(self, x: np.ndarray) -> np.ndarray:
        from hccs.executors.onnx.embedding import unit

        building = self.building(32, x.shape[1])
        out = unit(building, op.Unit(("x",), "y", x.shape[1]))
        return self.run(building, {"x": x.astype(np.float64)}, out)[0]


@pytest.fixture(scope="module", params=[pytest.param(InC, marks=in_c), InOnnx])
def operators(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param(tmp_path_factory.mktemp("operators"))


def test_rows_of_every_size_are_narrowed(operators: Any) -> None:
    """Each magnitude is the largest of one row; ties, and 127.5 that would round to 128, among the others."""
    largest = np.arange(32768)
    beside = np.random.default_rng(0).integers(-largest, largest + 1, (7, 32768))
    x = np.concatenate([largest[None], beside, [largest // 2], [-largest]]).T.astype(np.int16)
    x[::3] = -x[::3]
    scale = np.full(x.shape[1], 32767, np.int16)
    got = operators.narrow_rows(x, scale)
    assert np.array_equal(got, narrow_rows(x, scale))
    assert set(got[:, -1].tolist()) == set(range(9))
    scale[:4] = 1, 77, 4096, 16384
    assert np.array_equal(operators.narrow_rows(x, scale), narrow_rows(x, scale))


@pytest.mark.parametrize("limit", [127, 32767])
def test_layers_of_rows_saturate_and_round_as_the_law_says(operators: Any, limit: int) -> None:
    """Sums from 0 to beyond 2^30, multipliers from 2^7 to 2^24 - 1, every exponent; biases at half a step."""
    rng = np.random.default_rng(limit)
    multiplier = np.concatenate([[2**7, 2**24 - 1], np.exp2(rng.uniform(7, 24, 253))]).astype(np.int32)
    bias = (rng.normal(0, 1, 255) * 2.0 ** rng.integers(0, 31, 255)).clip(-(2**30), 2**30).astype(np.int32)
    bias[:100] = 4 * rng.integers(-50, 50, 100) + 2
    multiplier[20:40] = 2**22  # ties of the result, too
    layer = LinearParams(rng.integers(-127, 128, (255, 61)).astype(np.int8), bias, multiplier, limit)
    x = rng.integers(-127, 128, (151, 62)).astype(np.int8)
    x[::2] //= 40
    x[:, -1] = np.arange(151) % 9
    expected = linear_rows(x, layer)
    assert expected.max() == limit and expected.min() == -limit and len(np.unique(expected)) > 200
    assert np.array_equal(operators.linear(x, layer), expected)


@pytest.mark.parametrize("bits", [0, 3, 9])
def test_ramps_of_every_value(operators: Any, bits: int) -> None:
    """Residues that jump from piece to piece, up to 2^14; then GELU."""
    rng = np.random.default_rng(bits)
    x = np.arange(-32767, 32768).astype(np.int16)
    knot = rng.integers(0, 2**14 + 1, 64)
    slope = rng.integers(-knot, 2**14 - knot + 1)
    for p in (
        RampParams(knot.astype(np.int16), slope.astype(np.int16), bits),
        RampParams.from_function(gelu, 2.0 ** (bits - 9) / 100),
    ):
        assert np.array_equal(operators.ramp(x, p), ramp(x, p))


@pytest.mark.parametrize("kind", ["mean", "last", "max"])
def test_pooled_values_round_half_up(operators: Any, kind: str) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 6, 40):
        x = rng.integers(-40, 41, (n, 300)).astype(np.int16)
        x[:, :2] = [32767, -32767]
        assert np.array_equal(operators.pool(x, kind), pool(x, kind, divided=True))


def test_unit_vectors_of_every_size(operators: Any) -> None:
    """Values of up to 31 bits, 4,096 of them, one alone, none; sums of squares beside squares."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.uniform(0, 30.9, (3000, 1)))
    x = (rng.uniform(-1, 1, (3000, 3)) * sizes).astype(np.int32)
    x[:6] = [
        [0, 0, 0],
        [2**31 - 1, 0, 0],
        [1 - 2**31, 2**31 - 1, 1],
        [2**25 - 1, 1, 1],
        [2**25, 1, 3],
        [1, 0, 0],
    ]
    root = rng.integers(2**20, 2**25, 1000)
    x[1000:2000] = np.stack([root, rng.integers(0, 3, 1000), np.zeros(1000)], axis=1)
    assert np.array_equal(operators.unit(x), np.stack([unit(row) for row in x]))
    wide = np.stack([np.full(4096, 2**31 - 1), np.full(4096, 1 - 2**25), np.arange(4096) - 2048]).astype(
        np.int32
    )
    assert np.array_equal(operators.unit(wide), np.stack([unit(row) for row in wide]))


@pytest.mark.parametrize("seed", range(21))
def test_random_embedders_in_onnx(seed: int) -> None:
    require_the_reference_in_onnx(random_embedder(seed), seed)


@pytest.mark.parametrize("name", others())
def test_other_embedders_in_onnx(name: str) -> None:
    require_the_reference_in_onnx(others()[name], 0)


def require_the_reference_in_onnx(program: Program, seed: int) -> None:
    """A batch of random lengths, one token alone, and short sequences in a larger batch."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from hccs.executors.onnx import equal_scores, onnx_program
    from hccs.executors.onnx.model import session_of

    made = onnx_program(program)
    onnx.checker.check_model(made, full_check=True)
    model, file = IntegerModel(program), made.SerializeToString()
    session = session_of(file, threads=1)
    for size in [(None, None), (1, 1), (5, 17), (9, 3)]:
        batch = random_batch(program, seed, *size)
        expected = model(*batch, reference=True)
        names = INPUTS if program.embed.image is None else ("pixel_values",)
        given = dict(zip(names, batch, strict=True))
        vectors, embeddings = session.run(["vectors", "embeddings"], given)
        assert vectors.dtype == np.int16 and np.array_equal(vectors, expected.scores)
        assert np.array_equal(embeddings, expected.logits)
    assert equal_scores(file, model) == 32


def test_sequences_whose_sums_leave_int32_are_refused() -> None:
    mean = op.Pool(("x",), "y", "mean")
    mean.require_rows(2**16)
    with pytest.raises(DataError, match="at most 65536 tokens"):
        mean.require_rows(2**16 + 1)


def test_a_ramp_that_leaves_int16_is_refused() -> None:
    knot, slope = np.zeros(64, np.int16), np.zeros(64, np.int16)
    RampParams(knot, slope, 9)
    for at, bits in ((63, 9), (63, 2), (62, 9)):
        low = knot.copy()
        low[at] = -1 if at == 63 else -600
        with pytest.raises(ParameterError, match="at most 32767"):
            RampParams(low, slope, bits)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_lowered_encoder_in_c_and_onnx(pooling: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import hccs.nn
    from tests.nn.test_lowering_vectors import made

    model, table, batches = made()
    lowered = hccs.nn.lower(model, table, batches, vector=hccs.nn.VectorHead(pooling))
    if COMPILERS:
        sequences = [batches[0]["input_ids"][0, :length].tolist() for length in (1, 5, 8)]
        written = export_c_model(lowered, tmp_path / "c", sequences=sequences)
        require_pass(make(written.folder, "sanitize"), 3, "values")
    pytest.importorskip("onnxruntime")
    from hccs.executors.onnx import equal_scores, write_checked

    file, _ = write_checked(lowered, tmp_path / "model.onnx")
    assert equal_scores(file, lowered, seed=1) == 32
