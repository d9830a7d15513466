"""Programs of decoders: their operators put together, in NumPy and in every other executor."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import DataError, HccsError
from hccs.executors.numpy import run
from hccs.numbers.heads import HeadParams
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.score_tables import ScoreTable
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.reference.attention import attention
from tests.program.programs import LONGEST, random_batch, random_decoder


def model_of(program: Program) -> IntegerModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return IntegerModel(program)


@pytest.mark.parametrize("seed", range(24))
def test_every_form_runs_alike_in_numpy_and_by_the_reference(seed, tmp_path):
    program = random_decoder(seed)
    model, batch = model_of(program), random_batch(program, seed)
    expected = model(*batch, reference=True).scores
    assert expected.dtype == np.int32 and expected.any()
    np.testing.assert_array_equal(run(program, program.embed.read(*batch, program.longest)), expected)
    model.save(tmp_path / "model.hccs")
    loaded = IntegerModel.load(tmp_path / "model.hccs") if model._engine else model_of(program)
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


def test_embeddings_without_positions_take_any_length():
    program = next(p for p in map(random_decoder, range(50)) if p.embed.params.positions is None)
    assert program.embed.most_rows is None and program.longest == LONGEST


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
        (op.Last(("a",), "y"), (op.Value(16, 4, 9, False),), "to read int8 or int16 rows"),
    ],
)
def test_values_that_do_not_fit_are_refused(step, given, match):
    with pytest.raises(DataError, match=match):
        step.written(list(given))
