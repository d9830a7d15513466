"""Programs of decoders: their operators put together, in NumPy and in every other executor."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import DataError, HccsError
from hccs.executors.c.write import export_c_model
from hccs.executors.cpu import TARGET
from hccs.executors.numpy import run
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import INT16_LIMIT, LONG_STREAM_LIMIT, RampParams
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.score_tables import ScoreTable
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.program.plan import plan
from hccs.reference.attention import attention
from tests.export.compilers import in_c, make, require_pass
from tests.program.programs import LONGEST, Builder, gelu, random_batch, random_decoder, scores

THREADS = (1, 2, 3)


@functools.cache
def random_case(seed: int):
    """A program, and batches with what the reference answers: once for all instruction sets."""
    program = random_decoder(seed)
    sizes = [(None, None), (1, 1), (1, LONGEST), (2, LONGEST), (40, 3)][: 5 if seed < 12 else 1]
    batches = [random_batch(program, seed, *size) for size in sizes]
    model = IntegerModel(program)
    return program, [(batch, model(*batch, reference=True).scores) for batch in batches]


@pytest.mark.parametrize("seed", range(60))
def test_the_engine_runs_every_form_on_every_instruction_set(seed, instruction_set):
    program, cases = random_case(seed)
    model = IntegerModel(program)
    assert model._engine is not None
    for batch, expected in cases:
        for threads in THREADS:
            np.testing.assert_array_equal(model(*batch, threads=threads).scores, expected)


@pytest.mark.parametrize("h", [2, 31, 576, 1024, 1025, 2048, 2049, 4096])
@pytest.mark.parametrize("limit", [None, INT16_LIMIT, LONG_STREAM_LIMIT])
def test_rms_norm_of_any_width_alone_and_after_sums(h, limit, instruction_set):
    """Of the embedding, of a sum, with the stream beside it, narrowed in both ways and not at all."""
    program, batch, expected = norms_around_sums(h, limit)
    np.testing.assert_array_equal(IntegerModel(program)(*batch).scores, expected)


@functools.cache
def norms_around_sums(h, limit):
    """A program, its input and the reference's answer, which all instruction sets share."""
    built = Builder(h)
    x = built.embed(h, limit if limit == INT16_LIMIT else None)
    if limit is not None:
        y = built.rms(x)
        part = built.linear(built.narrow(y), h, max(limit, INT16_LIMIT))
        x = built.sum(x, part, limit)
        part = built.linear(
            built.add(op.NarrowRows, (built.rms(x),), h), h, max(limit, INT16_LIMIT), rows=True
        )
        x = built.sum(x, part, limit)
    program = scores(built, built.narrow(built.rms(x), 8), 5)
    batch = random_batch(program, h, 3, 11)
    return program, batch, run(program, program.embed.read(*batch, program.longest), reference=True)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 127, 130, 400])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_around_the_blocks_of_the_engine(window, causal, instruction_set):
    """Sequences of several blocks of queries, and of one key less and more than a window."""
    built = Builder(window, lines=2 + window % 2)
    built.longest = 300
    qkv = built.linear(built.narrow(built.embed(24, INT16_LIMIT)), 5 * 8)
    y = built.linear(built.attend(qkv, 3, causal, 1, window), 24)
    program = scores(built, y, 3)
    model = IntegerModel(program)
    for n in (1, 64, 65, 200, 300):
        batch = random_batch(program, n, 2, n)
        expected = run(program, program.embed.read(*batch, program.longest))
        for threads in (1, 2):
            np.testing.assert_array_equal(model(*batch, threads=threads).scores, expected)


def test_ramp_product_and_rows_run_as_one_step():
    program = next(p for p in map(random_decoder, range(9)) if not p.per_token)
    planned = plan(program, TARGET)
    steps = [step for group in planned.groups for step in group]
    gates = [step for step in steps if isinstance(step.main, op.Multiply)]
    assert gates
    for step in gates:
        assert isinstance(step.before, op.Ramp) and isinstance(step.after, op.NarrowRows)
        assert len(step.reads) == 2 and step.writes == (step.after.output,)


def test_a_ramp_that_is_the_second_factor_or_both_runs_too():
    built = Builder(3)
    x = built.norm(built.embed(16, INT16_LIMIT))
    params = RampParams.from_function(gelu, 8 / 32767)
    active = built.add(op.Ramp, (x,), 16, params)
    product = built.add(op.Multiply, (x, active), 16, 12, INT16_LIMIT)
    square = built.add(op.Multiply, (active, active), 16, 12, INT16_LIMIT)
    program = scores(built, built.narrow(built.sum(product, square, INT16_LIMIT), 7), 4)
    model, batch = IntegerModel(program), random_batch(program, 3)
    np.testing.assert_array_equal(model(*batch).scores, model(*batch, reference=True).scores)


def test_a_projection_after_the_embeddings():
    """ALBERT and small ELECTRA: narrow embeddings, their norm, and a layer to the stream's width."""
    built = Builder(5)
    x = built.linear(built.narrow(built.norm(built.embed(12, None))), 32, INT16_LIMIT)
    attended = built.attend(built.linear(built.narrow(x), 96), 4, causal=False)
    x = built.norm(built.sum(x, built.linear(attended, 32, INT16_LIMIT)))
    program = scores(built, built.add(op.First, (built.narrow(x),), 32), 3)
    model, batch = IntegerModel(program), random_batch(program, 5)
    assert model._engine is not None
    np.testing.assert_array_equal(model(*batch).scores, model(*batch, reference=True).scores)


@in_c
@pytest.mark.parametrize("seed", range(6))
def test_c_runs_every_form(seed, tmp_path):
    written = export_c_model(IntegerModel(random_decoder(seed)), tmp_path / "c")
    require_pass(make(written.folder, "sanitize"), 12, "values")


@pytest.mark.parametrize("seed", range(24))
def test_onnx_runs_every_form(seed):
    pytest.importorskip("onnxruntime")
    from hccs.executors.onnx.model import equal_scores, onnx_program

    program = random_decoder(seed)
    assert equal_scores(onnx_program(program).SerializeToString(), IntegerModel(program)) == 32


def model_of(program: Program) -> IntegerModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return IntegerModel(program)


@pytest.mark.parametrize("seed", range(24))
def test_every_form_runs_alike_in_numpy_and_by_the_reference(seed, tmp_path):
    program = random_decoder(seed)
    model, batch = model_of(program), random_batch(program, seed)
    expected = model(*batch, reference=True).scores
    assert expected.dtype == np.int32 and expected.any()
    np.testing.assert_array_equal(run(program, program.embed.read(*batch, program.longest)), expected)
    model.save(tmp_path / "model.hccs")
    loaded = IntegerModel.load(tmp_path / "model.hccs")
    np.testing.assert_array_equal(loaded(*batch, reference=True).scores, expected)
    assert "Rotate" in repr(model) and "RmsNorm" in repr(model)


@pytest.mark.parametrize("seed", range(8))
def test_no_sequence_sees_another(seed):
    """Each alone, and all together: the same rows."""
    program = random_decoder(seed)
    model = model_of(program)
    tokens, mask, types = random_batch(program, seed, count=5, n=30)
    together = model(tokens, mask, types).scores
    for row, length in enumerate(mask.sum(1)):
        alone = model(tokens[row : row + 1, :length], None, types[row : row + 1, :length]).scores[0]
        found = together[row][:length] if program.per_token else together[row]
        np.testing.assert_array_equal(found, alone)


def one_attention(theta, **named) -> op.Attention:
    return op.Attention(
        ("x",), "y", theta, Requant(FixedPoint(2**14, 22), 1.0, FixedPoint(2**23, 23)), **named
    )


THETA = HeadParams([300, 200, 100, 150], [5, 3, 2, 1], [40, 60, 30, 100])
TABLE = ScoreTable.of_exponentials(np.full(4, 0.1), largest=1023)


@pytest.mark.parametrize("theta", [THETA, TABLE], ids=["lines", "table"])
@pytest.mark.parametrize("kv_heads", [None, 1, 2, 4])
@pytest.mark.parametrize(
    ("causal", "window"), [(False, None), (False, 6), (False, 7), (True, None), (True, 5), (True, 1)]
)
def test_grouped_and_local_attention_is_attention_to_the_keys_in_reach(theta, kv_heads, causal, window):
    """Query by query over the keys that transformers' masks leave it."""
    rng = np.random.default_rng(0)
    step = one_attention(theta, causal=causal, kv_heads=kv_heads, window=window)
    shared, dim, n = kv_heads or 4, 8, 20
    rows = rng.integers(-127, 128, (2, n, (4 + 2 * shared) * dim)).astype(np.int8)
    lengths = np.array([20, 13])
    assert step.written([op.Value(8, rows.shape[2], 127)]).width == 4 * dim
    found = step.run([rows], op.Batch(rows, lengths, rows)).reshape(2, n, 4, dim)
    q = rows[..., : 4 * dim].reshape(2, n, 4, dim)
    k, v = rows[..., 4 * dim :].reshape(2, n, 2, shared, dim).transpose(2, 0, 1, 3, 4)
    for b, length in enumerate(lengths):
        for i in range(length):
            # modeling_modernbert: abs(i - j) <= local_attention // 2; Mistral: j > i - sliding_window
            seen = [
                j
                for j in range(length)
                if (j <= i or not causal)
                and (window is None or (j > i - window if causal else abs(i - j) <= window // 2))
            ]
            keys, values = (part[b][seen].transpose(1, 0, 2).repeat(4 // shared, axis=0) for part in (k, v))
            exact = attention(q[b, i][:, None], keys, values, theta, step.requant, out="int8")
            np.testing.assert_array_equal(found[b, i], exact[:, 0])


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({"kv_heads": 3}, "that divide 4"),
        ({"kv_heads": 0}, "heads of k and v from 1 to 4"),
        ({"kv_heads": 2.0}, "heads of k and v from 1 to 4"),
        ({"window": 0}, "a window from 1"),
        ({"window": True}, "a window from 1"),
        ({"kv_heads": 2}, "to read 4 heads of q, 2 of k and v"),
    ],
)
def test_heads_and_windows_that_do_not_fit_are_refused(named, match):
    with pytest.raises(DataError, match=match):
        one_attention(THETA, **named).written([op.Value(8, 12 * 5, 127)])


def test_longer_sequences_than_the_tables_are_refused():
    program = random_decoder(0)
    short = tuple(
        replace(step, params=replace(step.params, cosine=step.params.cosine[:7], sine=step.params.sine[:7]))
        if isinstance(step, op.Rotate)
        else step
        for step in program.operators
    )
    model = model_of(replace(program, operators=short))
    assert model(np.zeros((1, 7), np.int64)).scores.any()
    with pytest.raises(HccsError, match="at most 7 positions"):
        model(np.zeros((1, 8), np.int64))


def test_no_sequences_have_no_scores():
    program = random_decoder(1)
    empty = np.zeros((0, 5), np.int64)
    found = run(program, op.Batch(empty, np.zeros(0, np.int64), empty))
    assert found.shape[0] == 0


def test_embeddings_without_positions_take_any_length():
    program = next(p for p in map(random_decoder, range(50)) if p.embed.params.positions is None)
    assert program.embed.most_rows is None and program.longest == LONGEST


def heads(gain=None, bits=None, epsilon=None) -> op.NormHeads:
    """Two heads of two channels."""
    return op.NormHeads(
        ("a",),
        "y",
        np.ones((2, 2), np.int32) if gain is None else gain,
        np.full(2, 8) if bits is None else bits,
        np.ones(2, np.int64) if epsilon is None else epsilon,
    )


@pytest.mark.parametrize(
    ("step", "given", "match"),
    [
        (op.Multiply(("a", "b"), "y", 31), (op.Value(16, 4, 9), op.Value(16, 4, 9)), "bits from 0 to 30"),
        (op.Multiply(("a", "b"), "y", 3, 2**23), (op.Value(16, 4, 9),) * 2, "a limit from 1 to 8388607"),
        (
            op.Multiply(("a", "b"), "y", 3),
            (op.Value(16, 4, 9), op.Value(16, 5, 9)),
            "to read int16 rows of 4",
        ),
        (op.Multiply(("a", "b"), "y", 3), (op.Value(16, 4, 9), op.Value(16, 4, 9, False)), "like by like"),
        (op.NarrowRows(("a",), "y"), (op.Value(32, 4, 2**23),), "magnitudes up to 8388607"),
        (
            op.NarrowRows(("a",), "y", np.ones(4, np.int16)),
            (op.Value(32, 4, 9),),
            "int16 rows where channels",
        ),
        (heads(gain=np.zeros(4, np.int32)), (op.Value(16, 4, 9),), r"gains \[heads, channels\]"),
        (heads(bits=np.array([8], np.int64)), (op.Value(16, 4, 9),), "gain bits, int64 of 2 heads"),
        (heads(epsilon=np.ones(2, np.int32)), (op.Value(16, 4, 9),), "epsilons, int64 of 2 heads"),
        (heads(), (op.Value(16, 3, 9),), "at least 4 channels"),
        (heads(), (op.Value(32, 4, 9),), "to read int16 rows of 4"),
        (op.Last(("a",), "y"), (op.Value(16, 4, 9, False),), "to read int8 or int16 rows"),
    ],
)
def test_values_that_do_not_fit_are_refused(step, given, match):
    with pytest.raises(DataError, match=match):
        step.written(list(given))


@pytest.mark.parametrize(("bits", "epsilon"), [(6, 1), (17, 1), (8, 0), (8, 2**62)])
def test_constants_of_heads_are_those_of_rms_norm(bits, epsilon):
    with pytest.raises(HccsError):
        heads(bits=np.array([8, bits]), epsilon=np.array([1, epsilon])).written([op.Value(16, 4, 9)])


@pytest.mark.parametrize("dim", [1, 2, 15, 16, 17, 64, 128])
@pytest.mark.parametrize("rest", [0, 1, 40])
def test_norms_of_heads_of_any_width(dim, rest, instruction_set):
    """Around the width of a vector, with and without channels behind the heads, and behind a sum."""
    built = Builder(dim)
    width = 3 * dim + rest
    x = built.embed(width, INT16_LIMIT)
    x = built.sum(x, built.linear(built.narrow(built.norm(x)), width, INT16_LIMIT), INT16_LIMIT)
    gain = built.integers(-(2**20), 2**20, (3, dim))
    y = built.add(op.NormHeads, (x,), width, gain, np.array([7, 9, 16]), np.array([1, 999, 2**50]))
    program = scores(built, built.narrow(y, 8), 5)
    model, batch = IntegerModel(program), random_batch(program, dim, 3, 11)
    expected = model(*batch, reference=True).scores
    for threads in THREADS:
        np.testing.assert_array_equal(model(*batch, threads=threads).scores, expected)
