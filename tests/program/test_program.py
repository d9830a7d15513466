"""Integer models as files and as calls: equal after loading, damaged files refused, bad ids explained."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hccs._files import safetensors
from hccs.errors import DataError, DtypeError, FileError, HccsError, MaskError, ShapeError
from hccs.executors.numpy import run
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import EmbeddingParams, NormParams, quantise_linear, quantise_scores, word_step
from hccs.numbers.requant import Requant
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.program.operators import Batch
from hccs.reference.table import table
from tests.program.programs import random_embedder


def small_program(seed=0, h=16, heads=2, words=40, longest=12, theta=None):
    """One attention layer and a head, of random weights: no torch needed."""
    rng = np.random.default_rng(seed)

    def layer(outputs, inputs, **scales):
        return quantise_linear(rng.normal(0, 0.3, (outputs, inputs)), rng.normal(0, 0.1, outputs), **scales)

    W, P, T = rng.normal(0, 1, (words, h)), rng.normal(0, 0.5, (longest, h)), rng.normal(0, 0.1, (2, h))
    step, shift = word_step(W, P, T)
    fine, stream, int8 = step / 2**shift, 0.0002, 0.0256
    norm = NormParams.from_float(
        rng.normal(1, 0.1, h), rng.normal(0, 0.1, h), 1e-5, in_scale=fine, out_scale=stream
    )
    norm2 = NormParams.from_float(np.ones(h), np.zeros(h), 1e-5, in_scale=stream, out_scale=stream)
    requant = Requant.from_scales(
        q_scale=np.full(heads, 0.02), k_scale=np.full(heads, 0.02), v_scale=np.full(heads, 0.02),
        logit_scale=np.full(heads, 0.02), scaling=(h // heads) ** -0.5, out_scale=0.02,
    )  # fmt: skip
    scores, scale = quantise_scores(rng.normal(0, 1, (3, h)), rng.normal(0, 1, 3), in_scale=1 / 127)
    operators = (
        op.Embed("embedded", EmbeddingParams.from_float(W, P, T, step, shift)),
        op.LayerNorm(("embedded",), "x", norm),
        op.Narrow(("x",), "x8", 7),
        op.Linear(("x8",), "qkv", layer(3 * h, h, in_scale=int8, out_scale=0.02)),
        op.Attention(
            ("qkv",), "context", theta or HeadParams(B=[300] * heads, S=[5] * heads, D=[40] * heads), requant
        ),
        op.Linear(
            ("context",), "part", layer(h, h, in_scale=0.02, out_scale=stream, limit=32767, input_limit=128)
        ),
        op.Add(("x", "part"), "sum"),
        op.LayerNorm(("sum",), "y", norm2),
        op.Narrow(("y",), "y8", 7),
        op.First(("y8",), "first"),
        op.Linear(("first",), "pooled", layer(h, h, in_scale=int8, out_scale=0.03)),
        op.Table(("pooled",), "tanh", table(np.tanh, 0.03, 1 / 127)),
        op.Linear(("tanh",), "scores", scores),
    )
    return Program(
        operators, ("no", "maybe", "yes"), longest, scale, {"x": stream}, "a tokenizer", {"from": "a test"}
    )


@pytest.fixture
def model():
    return IntegerModel(small_program())


def batch(seed=1, count=5, n=12):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, n + 1, count)
    mask = (np.arange(n) < lengths[:, None]).astype(np.int64)
    return rng.integers(0, 40, (count, n)) * mask, mask, rng.integers(0, 2, (count, n))


@pytest.mark.parametrize("seed", range(20))
def test_the_fast_form_is_the_reference(seed):
    model = IntegerModel(small_program(seed, h=int(np.random.default_rng(seed).choice([8, 16, 24]))))
    given = batch(seed)
    assert np.array_equal(model(*given).scores, model(*given, reference=True).scores)


def test_a_file_is_the_model(model, tmp_path):
    model.save(tmp_path / "model.hccs")
    again = IntegerModel.load(tmp_path / "model.hccs")
    assert np.array_equal(again(*batch()).scores, model(*batch()).scores)
    assert again.labels == ("no", "maybe", "yes")
    facts = {"from": "a test", "fingerprint": model.fingerprint()}
    assert (again.program.tokenizer, again.program.facts) == ("a tokenizer", facts)
    assert repr(again) == repr(model)


@pytest.mark.parametrize("seed", range(10))
def test_embedders_survive_their_files(seed, tmp_path):
    model = IntegerModel(random_embedder(seed))
    model.save(tmp_path / "model.hccs")
    assert IntegerModel.load(tmp_path / "model.hccs").verify() == model.fingerprint()


def test_damaged_files_are_refused_or_equal(model, tmp_path):
    path = tmp_path / "model.hccs"
    model.save(path)
    whole, expected = path.read_bytes(), model(*batch()).scores
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 150).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = IntegerModel.load(path)
        except HccsError:
            continue
        assert np.array_equal(found(*batch()).scores, expected)
    for cut in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError):
            IntegerModel.load(path)


def test_answers_come_with_names_and_logits(model):
    answer = model(*batch())
    assert answer.scores.dtype == np.int32
    assert answer.labels == [model.labels[i] for i in answer.scores.argmax(-1)]
    assert answer.logits.dtype == np.float32
    assert np.allclose(answer.logits, answer.scores * model.program.score_scale)


def test_a_program_prints_readably(model):
    text = repr(model)
    assert "Attention" in text and "16 -> 48 int8" in text and "products per token" in text


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (([[1, 2, 3], [4]],), ShapeError, "input_ids as an array.*same length"),
        ((None,), DtypeError, "integers"),
        (([[1, 2]], [[1, 1], [1]]), ShapeError, "attention_mask as an array"),
        (([[1, 99]],), DataError, "input_ids from 0 to 39"),
        (([[1, -1]],), DataError, "input_ids from 0 to 39"),
        (([[1.0, 2.0]],), DtypeError, "integers"),
        ((np.zeros((1, 13), int),), ShapeError, "at most 12 tokens"),
        ((np.zeros((1, 2, 3), int),), ShapeError, r"\[batch, n\]"),
        (([[1, 2, 3]], [[1, 0, 1]]), MaskError, "holes"),
        (([[1, 2, 3]], [[0, 1, 1]]), MaskError, "holes, or padding on the left"),
        (([[1, 2, 3]], [[0, 0, 0]]), MaskError, "at least one token"),
        (([[1, 2, 3]], [[1, 1]]), MaskError, "shape"),
        ((np.ma.array([[1, 2, 3]], mask=[[0, 0, 1]]), [[1, 1]]), MaskError, "shape"),
        (([[1, 2, 3]], [[0.0, -1e9, 0.0]]), MaskError, "0 and 1"),
        (([[1, 2]], None, [[0, 2]]), DataError, "token_type_ids from 0 to 1"),
        (([[1, 2]], None, [[0]]), ShapeError, "token_type_ids of shape"),
    ],
)
def test_bad_input_is_explained(model, given, error, says):
    with pytest.raises(error, match=says):
        model(*given)


def test_a_program_is_a_straight_list():
    good = small_program()
    with pytest.raises(DataError, match="unknown"):
        Program(good.operators[1:], good.labels, 12, 1.0)
    with pytest.raises(DataError, match="written twice"):
        Program((good.operators[0], *good.operators), good.labels, 12, 1.0)
    with pytest.raises(DataError, match="ends with int32 scores"):
        Program(good.operators[:-1], good.labels, 12, 1.0)


def test_running_a_model_needs_numpy_alone(model, tmp_path):
    model.save(tmp_path / "model.hccs")
    program = (
        "import sys; from hccs.program import IntegerModel; "
        f"print(IntegerModel.load({str(tmp_path / 'model.hccs')!r})([[1, 2, 3]]).scores.tolist()); "
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(model([[1, 2, 3]]).scores.tolist())


def test_programs_hold_two_lines(tmp_path):
    theta = HeadParams(B=[1023, 2000], S=[4, 5], D=[50, 60], S2=[40, 70], D2=[20, 22], f=[2, 0])
    one, two = IntegerModel(small_program()), IntegerModel(small_program(theta=theta))
    ids = np.random.default_rng(1).integers(0, 40, (3, 12))
    for name, model in (("one", one), ("two", two)):
        model.save(tmp_path / name)
        assert safetensors.read(tmp_path / name)[1]["version"] == "1"
        again = IntegerModel.load(tmp_path / name)
        np.testing.assert_array_equal(again(ids).scores, model(ids).scores)
        np.testing.assert_array_equal(
            run(model.program, Batch(ids, np.full(3, 12), np.zeros_like(ids)), reference=True),
            model(ids).scores,
        )
    attention = next(step for step in again.program.operators if isinstance(step, op.Attention))
    assert attention.theta == theta
    assert (one(ids).scores != two(ids).scores).any()
