"""Whole programs in ONNX Runtime: the reference's scores in every bit, at all shapes and extremes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from hccs.cli.app import app
from hccs.errors import ModelError
from hccs.executors.onnx import equal_scores, layer_norm, onnx_program, write_checked, write_onnx
from hccs.executors.onnx import model as onnx_model
from hccs.executors.onnx.attention import OFFSET_SHIFT, _divided, _divided_in_int64, attention
from hccs.executors.onnx.graph import MICROSOFT, Building, Graph, Tokens
from hccs.executors.onnx.linear import linear, narrow, table
from hccs.executors.onnx.model import random_inputs, session_of
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import EmbeddingParams, LinearParams, NormParams, quantise_linear, quantise_scores
from hccs.numbers.requant import FixedPoint, Requant
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.reference.attention import attention as reference_attention
from hccs.reference.layer_norm import inverse_root
from hccs.reference.layer_norm import layer_norm as reference_layer_norm
from hccs.reference.linear import linear as reference_linear
from hccs.reference.linear import narrow as reference_narrow
from hccs.reference.table import look_up
from tests.export.programs import random_program
from tests.program.test_program import small_program
from tests.program.test_values import decoder, patches

STEP = 0.0005


def run(graph: Graph, inputs: dict[str, Any], *outputs: str) -> list[Any]:
    """ONNX Runtime on a graph under construction."""
    describe = onnx.helper.make_tensor_value_info
    given = [describe(name, graph.type(x.dtype), x.shape) for name, x in inputs.items()]
    wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
    made = onnx.helper.make_graph(graph.nodes, "part", given, wanted, graph.constants)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(MICROSOFT, 1)]
    model = onnx.helper.make_model(made, ir_version=10, opset_imports=opsets)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(list(outputs), inputs)


def as_uint8(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.int16) + 128).astype(np.uint8)


def encoder(seed: int) -> Program:
    """Layers of random widths and constants, norms behind or before, scores of sequences or of tokens."""
    rng = np.random.default_rng(seed)
    heads, d, wide, longest = (
        int(rng.integers(low, high)) for low, high in ((1, 4), (2, 14), (1, 40), (1, 14))
    )
    h, first, before = heads * d, int(rng.integers(3)), bool(rng.integers(2))

    def dense(outputs: int, inputs: int, out_scale: float, **limits: int) -> LinearParams:
        weight, bias = rng.normal(0, 0.5, (outputs, inputs)), rng.normal(0, 0.2, outputs)
        return quantise_linear(weight, bias, in_scale=STEP * 2**7, out_scale=out_scale, **limits)

    def normed(source: str, output: str) -> str:
        scales = {"in_scale": STEP, "out_scale": STEP}
        params = NormParams.from_float(rng.normal(1, 0.5, h), rng.normal(0, 0.3, h), 1e-5, **scales)
        steps.append(op.LayerNorm((source,), output, params))
        return output

    def narrowed(source: str, output: str) -> str:
        source = normed(source, f"{output}_normed") if before else source
        steps.append(op.Narrow((source,), output, int(rng.integers(9))))
        return output

    def added(part: str, stream: str, output: str) -> str:
        steps.append(op.Add((stream, part), f"{output}_sum", limit=20000 if before else None))
        return f"{output}_sum" if before else normed(f"{output}_sum", output)

    B, D = rng.integers(100, 32767 // longest, heads), rng.integers(1, 128, heads)
    theta = HeadParams(B, rng.integers(0, np.minimum(B // D, 127) + 1), D)
    factors = (FixedPoint.nearest(np.exp2(rng.uniform(*span, heads))) for span in ((-9, 3), (-2, 2)))
    requant = Requant(next(factors), np.ones(heads), next(factors))
    types = int(rng.integers(1, 3))
    rows = [
        rng.normal(0, size, (count, h)) for size, count in ((1, 30), (0.5, longest + first), (0.1, types))
    ]
    words = EmbeddingParams.from_float(*rows, STEP * 2**4, 4)
    steps: list[op.Operator] = [op.Embed("e", words, first_position=first, limit=32767 if before else None)]
    stream = "e" if before else normed("e", "s")
    for i in range(int(rng.integers(1, 3))):
        steps.append(op.Linear((narrowed(stream, f"x{i}"),), f"qkv{i}", dense(3 * h, h, 0.02)))
        steps.append(op.Attention((f"qkv{i}",), f"c{i}", theta, requant, causal=bool(rng.integers(2))))
        steps.append(op.Linear((f"c{i}",), f"p{i}", dense(h, h, STEP, limit=32767, input_limit=128)))
        stream = added(f"p{i}", stream, f"a{i}")
        steps.append(op.Linear((narrowed(stream, f"y{i}"),), f"w{i}", dense(wide, h, 0.01)))
        steps.append(op.Table((f"w{i}",), f"t{i}", rng.integers(-127, 128, 256).astype(np.int8)))
        steps.append(op.Linear((f"t{i}",), f"q{i}", dense(h, wide, STEP, limit=32767)))
        stream = added(f"q{i}", stream, f"b{i}")
    last = narrowed(stream, "last")
    if rng.integers(2):
        steps.append(op.First((last,), "first"))
        steps.append(op.Linear(("first",), "pooled", dense(h, h, 0.02)))
        last = "pooled"
    scores, scale = quantise_scores(rng.normal(0, 1, (3, h)), rng.normal(0, 1, 3), in_scale=0.01)
    return Program((*steps, op.Linear((last,), "scores", scores)), tuple("abc"), longest, scale)


def programs() -> dict[str, Program]:
    images = op.EmbedPatches("x", patches())
    return {
        "post-norm": small_program(0, h=24),
        "decoder": decoder(0),
        "pre-norm": decoder(1, causal=False),
        "images": decoder(embed=images, causal=False),
        **{f"random {seed}": encoder(seed) for seed in range(20)},
        **{f"two lines {seed}": random_program(seed, lines=2) for seed in range(6)},
    }


@pytest.mark.parametrize(("name", "program"), programs().items(), ids=list(programs()))
def test_scores_are_the_reference(name: str, program: Program, tmp_path: Path) -> None:
    model = onnx_program(program)
    onnx.checker.check_model(model, full_check=True)
    path, whole = write_onnx(program, tmp_path / "program.onnx"), IntegerModel(program)
    session = session_of(path, threads=1)
    for count in (1, 2, 4):
        given = random_inputs(whole, count, np.random.default_rng(count))
        expected = whole(*given.values(), reference=True)
        scores, logits = session.run(["scores", "logits"], given)
        assert scores.dtype == np.int32 and np.array_equal(scores, expected.scores)
        assert np.array_equal(logits, expected.logits)
    assert equal_scores(path, whole) == 32


def test_random_programs_take_every_path() -> None:
    """Large odd widths, clamped streams, causal attention and scores per token occur among them."""
    found = [encoder(seed) for seed in range(20)]
    steps = [step for program in found for step in program.operators]
    odd = {step.params.channels // (step.params.channels & -step.params.channels) > layer_norm.LARGEST_ODD
           for step in steps if isinstance(step, op.LayerNorm)}  # fmt: skip
    assert odd == {True, False}
    assert {step.causal for step in steps if isinstance(step, op.Attention)} == {True, False}
    assert {step.limit is None for step in steps if isinstance(step, op.Add)} == {True, False}
    assert {program.per_token for program in found} == {True, False}
    assert {len(program.embed.params.types) for program in found} == {1, 2}


def test_types_may_be_left_out_and_any_length_fits(tmp_path: Path) -> None:
    whole = IntegerModel(small_program(3))
    session = session_of(write_onnx(whole.program, tmp_path / "program.onnx"))
    for n in (1, 5, 12):
        ids = np.random.default_rng(n).integers(0, 40, (3, n))
        scores = session.run(["scores"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        assert np.array_equal(scores, whole(ids).scores)


def test_an_8_bit_layer_saturates_as_the_law_says() -> None:
    """Sums from small to beyond 2^24, multipliers from 1 to 2^24 - 1: never -128."""
    rng = np.random.default_rng(0)
    multiplier = np.concatenate([[1, 2**24 - 1], np.exp2(rng.uniform(0, 24, 254))]).astype(np.int32)
    bias = (rng.normal(0, 1, 256) * 2.0 ** rng.integers(0, 31, 256)).clip(-(2**30), 2**30).astype(np.int32)
    layer = LinearParams(rng.integers(-127, 128, (256, 64)).astype(np.int8), bias, multiplier)
    x = rng.integers(-127, 128, (100, 64)).astype(np.int8)
    expected = reference_linear(x, layer)
    assert expected.min() == -127 and len(np.unique(expected)) > 200
    graph = Graph()
    entries = rng.integers(-128, 128, 256).astype(np.int8)
    clamped, open_ = linear(graph, "x", layer), linear(graph, "x", layer, clamp=False)
    looked_up = table(graph, open_, entries, 256, clamp=True)
    got = run(graph, {"x": as_uint8(x)}, clamped, open_, looked_up)
    assert np.array_equal(got[0], as_uint8(expected))
    assert (
        got[1].min() == 0
    )  #                                                    this is what clamping is for
    assert np.array_equal(got[2], as_uint8(look_up(expected, entries)))


def test_ties_round_to_even() -> None:
    """y = x / 2: every odd sum is a tie, in 8 bits and in 16."""
    x = np.arange(-127, 128, dtype=np.int8)[:, None]
    one, none = np.ones((1, 1), np.int8), np.zeros(1, np.int32)
    for limit in (127, 32767):
        layer = LinearParams(one, none, np.array([2**15], np.int32), limit)
        graph = Graph()
        got = run(graph, {"x": as_uint8(x)}, linear(graph, "x", layer))[0]
        expected = reference_linear(x, layer)
        assert np.array_equal(got, as_uint8(expected) if limit == 127 else expected)


def test_a_16_bit_layer_saturates_as_the_law_says() -> None:
    rng = np.random.default_rng(1)
    multiplier = np.concatenate([[1, 2**24 - 1], np.exp2(rng.uniform(0, 24, 254))]).astype(np.int32)
    bias = (rng.normal(0, 1, 256) * 2.0 ** rng.integers(0, 31, 256)).clip(-(2**30), 2**30).astype(np.int32)
    layer = LinearParams(rng.integers(-127, 128, (256, 64)).astype(np.int8), bias, multiplier, 32767, 128)
    x = rng.integers(-128, 128, (100, 64)).astype(np.int8)
    graph = Graph()
    assert np.array_equal(
        run(graph, {"x": as_uint8(x)}, linear(graph, "x", layer))[0], reference_linear(x, layer)
    )


@pytest.mark.parametrize("bits", [0, 1, 7, 8])
def test_narrowing_every_16_bit_value(bits: int) -> None:
    x = np.arange(-32767, 32768)[:, None]
    graph = Graph()
    got = run(graph, {"x": x.astype(np.float64)}, narrow(graph, "x", bits))[0]
    assert np.array_equal(got, as_uint8(reference_narrow(x.astype(np.int16), bits)))


@pytest.mark.parametrize("h", [2, 1024, 768, 34])
def test_roots_of_every_size_are_exact(h: int) -> None:
    """Squares and their neighbours, powers of four and theirs, random numbers: r and e of the law."""
    rng = np.random.default_rng(h)
    roots = [int(x) for x in np.exp2(rng.uniform(0, 31.49, 4000))] + [2**j for j in range(32)]
    near = [root * root + off for root in roots for off in (-1, 0, 1)] + [2**63 - 1, 1, 2, 3]
    Q = np.array([q for q in near if 1 <= q < 2**63], np.int64)
    graph = Graph()
    r, scale = run(graph, {"Q": Q[:, None]}, *layer_norm._inverse_root(graph, "Q", h))
    expected = [inverse_root(int(q), h) for q in Q]
    assert r[:, 0].tolist() == [found for found, _ in expected]
    assert scale[:, 0].tolist() == [2.0**-e for _, e in expected]


def extreme_rows(h: int, rng: np.random.Generator) -> np.ndarray:
    """Constant, one outlier, all saturated, alternating, nearly constant, tiny and large noise."""
    rows = [np.full(h, value) for value in (0, 1, -(2**16), 2**16)]
    rows += [
        np.where(np.arange(h) == 0, value, base) for value in (2**16, -(2**16)) for base in (0, 1, -(2**16))
    ]
    rows += [np.where(np.arange(h) % 2, 2**16, -(2**16)), np.where(np.arange(h) < h // 2, 1, 0)]
    rows += [np.where(np.arange(h) == h - 1, value + 1, value) for value in (0, 40000, -65536)]
    rows += [(rng.normal(0, size, h) + shift).clip(-(2**16), 2**16) for size in (0.5, 30, 3e3, 3e4, 1e6)
             for shift in (0, 777, -30000)]  # fmt: skip
    return np.array(rows).astype(np.int32)


@pytest.mark.parametrize(
    ("h", "count"), [(8, 60_000), (34, 30_000), (24, 20_000), (312, 500), (768, 500), (1024, 500)]
)
def test_layer_norm_is_the_law_for_extreme_and_random_rows(h: int, count: int) -> None:
    rng = np.random.default_rng(h)
    sizes = np.exp2(rng.uniform(0, 17, (count, 1)))
    shifts = rng.integers(-30000, 30000, (count, 1))
    random = (rng.standard_t(2, (count, h)) * sizes + shifts).clip(-(2**16), 2**16).astype(np.int32)
    v = np.concatenate([extreme_rows(h, rng), random])
    gain = rng.integers(-(2**23) + 1, 2**23, h).astype(np.int32)
    bias = (rng.normal(0, 1, h) * 2**28).clip(-(2**31), 2**31 - 1).astype(np.int32)
    for params in (NormParams(gain, bias, 16, 1), NormParams(gain // 8, bias // 16, 12, 2**62 - 1)):
        graph = Graph()
        got = run(graph, {"v": v.astype(np.float64)}, layer_norm.layer_norm(graph, "v", params))[0]
        assert np.array_equal(got, reference_layer_norm(v, params))


@pytest.mark.parametrize("shift", [20, OFFSET_SHIFT, OFFSET_SHIFT + 2])
@pytest.mark.parametrize("rows_differ", [False, True])
def test_attention_is_the_law_for_every_factor(shift: int, rows_differ: bool) -> None:
    """Logits that saturate, tie and vanish; outputs too; the whole range of B, S and D."""
    theta = HeadParams([3640, 1, 127, 3000, 2000, 500], [0, 1, 1, 23, 127, 3], [127, 1, 127, 127, 15, 40])
    require_the_law(theta, shift, rows_differ)


WIDE = {
    "int16 scores": HeadParams(
        [32767, 1023, 3, 3000, 9999, 500], [100, 4, 0, 0, 127, 3], [127, 50, 127, 9, 77, 40],
        [127, 41, 1, 127, 0, 7], [127, 20, 1, 9, 1, 40],
    ),
    "wide sums": HeadParams([32767, 15, 127, 3000, 2000, 500], [9, 1, 1, 23, 127, 3], 15, wide=True),
    "uint8 scores": HeadParams(
        [1023, 1020, 32767, 511, 16000, 250], [4, 0, 100, 3, 9, 1], [50, 1, 127, 127, 101, 40],
        [41, 127, 127, 1, 127, 2], [20, 1, 127, 4, 100, 30], [2, 2, 7, 1, 6, 1],
    ),
    "scores of both widths": HeadParams(
        [1023, 32767, 32767, 255, 256, 257], [3, 100, 100, 1, 1, 1], 60,
        [41, 127, 9, 2, 1, 2], [20, 60, 60, 30, 60, 30], [2, 0, 7, 0, 0, 0],
    ),
}  # fmt: skip


FLAT = {
    "one line": HeadParams([100] * 6, 0, 5),
    "wide sums": HeadParams([32767, 15, 127, 3000, 2000, 500], 0, 5, wide=True),
}


@pytest.mark.parametrize("rows_differ", [False, True])
@pytest.mark.parametrize("form", FLAT)
def test_heads_that_give_every_key_one_score(form: str, rows_differ: bool) -> None:
    """All slopes are 0: without a causal mask one row of sums serves all queries."""
    require_the_law(FLAT[form], 20, rows_differ)
    require_the_law(FLAT[form], 20, rows_differ, n=9, batch=1)


def test_a_program_of_such_heads_runs_in_batches(tmp_path: Path) -> None:
    program = small_program()
    steps = [
        replace(step, theta=HeadParams([100] * step.heads, 0, 5)) if isinstance(step, op.Attention) else step
        for step in program.operators
    ]
    flat = replace(program, operators=tuple(steps))
    file, _ = write_checked(IntegerModel(flat), tmp_path / "flat.onnx")
    assert equal_scores(file, IntegerModel(flat), seed=1) == 32


@pytest.mark.parametrize("shift", [20, OFFSET_SHIFT + 2])
@pytest.mark.parametrize("form", WIDE)
def test_attention_of_two_lines_is_the_law(form: str, shift: int) -> None:
    require_the_law(WIDE[form], shift, rows_differ=shift == 20)


def test_the_widest_sums_are_divided_in_64_bits() -> None:
    """Rows of up to 512 columns whose sums have 24 bits: their products are beyond float64."""
    require_the_law(WIDE["wide sums"], 30, rows_differ=False, n=509, batch=1)
    for form in ("int16 scores", "wide sums"):
        require_the_law(WIDE[form], OFFSET_SHIFT + 2, rows_differ=True, longest=512)


def test_products_beyond_float64_round_as_the_law_says() -> None:
    """N * R one below a tie and above 2^53, an odd number that float64 cannot hold: Z = 2^23, shift 47."""
    R = np.arange(2**23 + 1, 2**24, 2, dtype=np.uint64)
    inverse = R.copy()
    for _ in range(5):  # of odd numbers modulo 2^64
        inverse *= np.uint64(2) - R * inverse
    N = inverse * np.uint64(2**46 - 1) & np.uint64(2**47 - 1)
    found = (N <= 2**30) & (N * R > 2**53)
    N, R = N[found].astype(np.int64), R[found].astype(np.int64)
    law = [min(n * r + 2**46 >> 47, 127) + 128 for n, r in zip(N.tolist(), R.tolist(), strict=True)]
    factors = FixedPoint(R, np.full(len(R), 24))
    theta = HeadParams([32767] * len(R), 1, 1, wide=True)
    step = op.Attention(("qkv",), "context", theta, Requant(FixedPoint(R, 24), np.ones(len(R)), factors))
    given = {"N": N.astype(np.int32).reshape(1, -1, 1, 1), "Z": np.full((1, len(N), 1, 1), 2**23, np.int32)}
    graph = Graph()
    exact, rounded = (way(graph, "N", "Z", step, np.arange(24)) for way in (_divided_in_int64, _divided))
    got = [out.ravel().tolist() for out in run(graph, given, exact, rounded)]
    assert got[0] == law and got[1] != law and len(law) > 4


def require_the_law(
    theta: HeadParams, shift: int, rows_differ: bool, n: int = 9, batch: int = 3, longest: int | None = None
) -> None:
    rng = np.random.default_rng(shift)
    heads, d = 6, 5
    multiplier = np.array([2**24 - 1, 1, 2**23, 12345, 77, 2**20 + 1])
    requant = Requant(
        FixedPoint(multiplier, np.full(heads, shift)),
        np.ones(heads),
        FixedPoint(multiplier[::-1].copy(), np.array([24, shift, 20, 12, 1, 22])),
    )
    step = op.Attention(("qkv",), "context", theta, requant, causal=rows_differ)
    rows = rng.integers(-127, 128, (batch, n, 3, heads, d)).astype(np.int8)
    rows[0] = np.sign(rows[0]) * 127
    lengths = np.array([n, 4, 1])[:batch]
    mask = (np.arange(n) < lengths[:, None]).astype(np.uint8)[:, None, None]
    mask = mask * np.tri(n, dtype=np.uint8) if rows_differ else mask
    graph = Graph()
    out = attention(graph, "qkv", step, Tokens("sizes", "mask"), 3 * heads * d, longest or n)
    given = {"qkv": as_uint8(rows.reshape(batch * n, -1)), "sizes": np.array([batch, n]), "mask": mask}
    got = run(graph, given, out)[0].reshape(batch, n, heads, d).transpose(0, 2, 1, 3)
    q, k, v = rows.transpose(2, 0, 3, 1, 4)
    valid = np.broadcast_to(lengths[:, None, None], (batch, heads, n))
    expected = reference_attention(q, k, v, theta, requant, valid=valid, causal=rows_differ, out="int8")
    assert np.array_equal(got, as_uint8(expected))


def test_the_file_tells_its_labels_and_lengths() -> None:
    program = small_program()
    facts = {entry.key: entry.value for entry in onnx_program(program).metadata_props}
    assert json.loads(facts["hccs.labels"]) == ["no", "maybe", "yes"]
    assert float(facts["hccs.score_scale"]) == program.score_scale
    assert (facts["hccs.longest_row"], facts["hccs.tokenizer"]) == ("12", "a tokenizer")


def test_no_float_layer_hides_in_the_graph() -> None:
    """8-bit values in, integer products: no operator that rounds on its own is there."""
    kinds = {node.op_type for node in onnx_program(decoder()).graph.node}
    assert not kinds & {"MatMul", "Gemm", "LayerNormalization", "Softmax", "Erf", "Gelu", "Tanh", "Exp"}


def test_the_command_writes_and_checks(tmp_path: Path) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    file, out = tmp_path / "model.hccs", tmp_path / "model.onnx"
    IntegerModel(small_program()).save(file)
    done = runner.invoke(app, ["export", "onnx", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "32 of 32 random inputs" in done.output
    assert equal_scores(out, IntegerModel.load(file), seed=1) == 32
    refused = runner.invoke(app, ["export", "onnx", str(file), "--out", str(out), "--mode", "u8_clb"])
    assert refused.exit_code != 0


def off_by_one(graph: Graph, scores: str) -> str:
    return graph("Add", scores, np.int32(1))


def wrong_shape(graph: Graph, scores: str) -> str:
    return graph("Reshape", scores, np.array([7, 3]))


@pytest.mark.parametrize(
    ("broken", "expected"),
    [(off_by_one, "0 of 32 in ONNX Runtime"), (wrong_shape, "a graph that ONNX Runtime runs")],
)
def test_a_file_that_fails_its_check_is_not_written(
    broken: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    file, out = tmp_path / "model.hccs", tmp_path / "model.onnx"
    IntegerModel(small_program()).save(file)
    right = onnx_model.CODE[op.Linear]

    def wrong(building: Building, step: op.Linear) -> str:
        made = right(building, step)
        return broken(building.graph, made) if step.ends_program else made

    monkeypatch.setitem(onnx_model.CODE, op.Linear, wrong)
    for before in (None, b"an older file"):
        if before is not None:
            out.write_bytes(before)
        with pytest.raises(ModelError, match=expected):
            write_checked(IntegerModel.load(file), out)
        done = runner.invoke(app, ["export", "onnx", str(file), "--out", str(out)])
        assert done.exit_code != 0 and isinstance(done.exception, ModelError | SystemExit)
        assert (out.read_bytes() if out.exists() else None) == before


def test_the_embedded_task_has_equal_scores(tmp_path: Path) -> None:
    """Sentences from all over its dev set, in batches that mix lengths."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import hccs
    import hccs.nn
    from hccs.conversion.data import tasks
    from hccs_lab.demo import MODEL

    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(MODEL)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(MODEL))
    movies = tasks.load(tasks.TASKS["movies"])
    train, dev = ([text[0] for text in part.texts] for part in (movies.train, movies.dev))
    batches = [dict(tokenizer(train[:32], padding=True, return_tensors="pt"))]
    whole = hccs.nn.lower(model, hccs.calibrate(hccs.nn.collect(model, batches, n=64), n=64), batches)
    session = session_of(write_onnx(whole.program, tmp_path / "program.onnx"), threads=1)
    for start in range(0, 5):
        given = tokenizer(dev[start::50], padding=True, max_length=64, truncation=True, return_tensors="np")
        given = {name: given[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        assert np.array_equal(session.run(["scores"], given)[0], whole(*given.values()).scores)
