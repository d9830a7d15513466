"""What programs may consist of: types that fit, clamped streams, decoders, images, scores per token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import DataError, DtypeError, MaskError, ShapeError
from hccs.executors.c.write import export_c_model
from hccs.executors.onnx import onnx_program
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import (
    EmbeddingParams,
    LinearParams,
    NormParams,
    PatchParams,
    quantise_linear,
    quantise_scores,
)
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.reference.embedding import embed_patches
from tests.program.test_program import small_program

H, STREAM = 16, 0.0005


def decoder(seed=0, embed=None, causal=True):
    """One pre-norm layer and scores for every token."""
    rng = np.random.default_rng(seed)
    like = small_program(seed, h=H)
    attention = next(step for step in like.operators if isinstance(step, op.Attention))

    def layer(outputs, inputs, **scales):
        return quantise_linear(rng.normal(0, 0.3, (outputs, inputs)), rng.normal(0, 0.1, outputs), **scales)

    def norm():
        return NormParams.from_float(np.ones(H), np.zeros(H), 1e-5, in_scale=STREAM, out_scale=STREAM)

    if embed is None:
        tables = (rng.normal(0, 1, (40, H)), rng.normal(0, 0.5, (12, H)), np.zeros((1, H)))
        embed = op.Embed("x", EmbeddingParams.from_float(*tables, STREAM * 2**4, 4), limit=32767)
    scores, scale = quantise_scores(rng.normal(0, 1, (5, H)), np.zeros(5), in_scale=STREAM * 2**7)
    part = layer(H, H, in_scale=0.02, out_scale=STREAM, limit=32767, input_limit=128)
    operators = (
        embed,
        op.LayerNorm(("x",), "n", norm()),
        op.Narrow(("n",), "n8", 7),
        op.Linear(("n8",), "qkv", layer(3 * H, H, in_scale=STREAM * 2**7, out_scale=0.02)),
        replace(attention, causal=causal),
        op.Linear(("context",), "part", part),
        op.Add(("x", "part"), "y", limit=32767),
        op.LayerNorm(("y",), "last", norm()),
        op.Narrow(("last",), "last8", 7),
        op.Linear(("last8",), "scores", scores),
    )
    return Program(operators, tuple("abcde"), 12, scale)


def patches(seed=0):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(0, 0.05, (H, 3 * 4 * 4)), rng.normal(0, 0.1, H)
    projection = quantise_linear(
        weight, bias, in_scale=1 / 64, out_scale=STREAM, limit=32767, input_limit=128
    )
    special = rng.integers(-2000, 2000, (1, H)).astype(np.int16)
    positions = rng.integers(-2000, 2000, (7, H)).astype(np.int16)
    return PatchParams(projection, special, positions, 4, (3, 8, 12))


def test_a_decoder_sees_no_later_token():
    model = IntegerModel(decoder())
    assert model.program.per_token
    ids = np.random.default_rng(1).integers(0, 40, (2, 9))
    whole = model(ids).scores
    assert whole.shape == (2, 9, 5)
    for n in (1, 4, 8):
        assert np.array_equal(model(ids[:, :n]).scores, whole[:, :n])
    seeing = IntegerModel(decoder(causal=False))(ids).scores
    assert not np.array_equal(seeing, whole)


def test_scores_of_padding_are_zero():
    model = IntegerModel(decoder())
    answer = model([[3, 4, 5, 0, 0]], [[1, 1, 1, 0, 0]])
    assert np.array_equal(answer.scores[:, :3], model([[3, 4, 5]]).scores)
    assert not answer.scores[:, 3:].any()
    assert np.shape(answer.labels) == (1, 5)


@pytest.mark.parametrize("seed", range(5))
def test_clamped_streams_are_the_reference(seed, tmp_path):
    model = IntegerModel(decoder(seed))
    rng = np.random.default_rng(seed)
    ids, lengths = rng.integers(0, 40, (4, 12)), rng.integers(1, 13, (4, 1))
    given = ids, (np.arange(12) < lengths).astype(int)
    model.save(tmp_path / "model.hccs")
    expected = model(*given, reference=True).scores
    assert np.array_equal(model(*given).scores, expected)
    assert np.array_equal(IntegerModel.load(tmp_path / "model.hccs")(*given).scores, expected)


def test_weights_may_lie_the_other_way():
    program = decoder()
    turned = tuple(
        replace(step, params=replace(step.params, weight=np.asfortranarray(step.params.weight)))
        if isinstance(step, op.Linear)
        else step
        for step in program.operators
    )
    ids = np.arange(12)[None]
    found = IntegerModel(replace(program, operators=turned))(ids).scores
    assert np.array_equal(found, IntegerModel(program)(ids).scores)


def test_images_go_through_patches(tmp_path):
    model = IntegerModel(decoder(embed=op.EmbedPatches("x", patches()), causal=False))
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 12)).astype(np.uint8)
    answer = model(images)
    assert answer.scores.shape == (2, 7, 5)
    model.save(tmp_path / "model.hccs")
    again = IntegerModel.load(tmp_path / "model.hccs")
    assert np.array_equal(again(images, reference=True).scores, answer.scores)
    assert "patches of 4 x 4" in repr(again)
    assert np.array_equal(model(images[0]).scores[0], answer.scores[0])
    with pytest.raises(DtypeError, match="uint8"):
        model(images / 255)
    with pytest.raises(ShapeError, match=r"\[batch, 3, 8, 12\]"):
        model(images.transpose(0, 1, 3, 2))
    with pytest.raises(MaskError, match="images alone"):
        model(images, np.ones((2, 7), int))


def test_a_patch_is_cut_as_a_convolution_cuts_it():
    params = patches()
    images = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 12)).astype(np.uint8)
    found = embed_patches(images, params)[0]
    W = params.projection.weight.astype(np.int64).reshape(H, 3, 4, 4)
    cut = images[0, :, 4:8, 8:12].astype(np.int64) - 128  # the last patch, row 1 and column 2
    acc = (W * cut).sum((1, 2, 3)) + params.projection.bias
    wide = np.rint(acc * params.projection.multiplier / 2**16) + params.positions[-1]
    assert np.array_equal(found[-1], np.clip(wide, -32767, 32767))
    assert np.array_equal(found[0], params.special[0] + params.positions[0])


def test_operators_that_do_not_fit_are_refused():
    good = decoder().operators

    def changed(number, step):
        return Program((*good[:number], step, *good[number + 1 :]), tuple("abcde"), 12, 1.0)

    with pytest.raises(DataError, match="Linear, to read int8 rows of 16"):
        changed(3, op.Linear(("n",), "qkv", good[3].params))
    with pytest.raises(DataError, match="to read int8 rows of 8"):
        changed(3, op.Linear(("n8",), "qkv", LinearParams(good[3].params.weight[:, :8], *_rest(good[3]))))
    with pytest.raises(DataError, match="to read 2 heads of q, 2 of k and v"):
        changed(3, op.Linear(("n8",), "qkv", LinearParams(good[3].params.weight[:40], *_rest(good[3], 40))))
    with pytest.raises(DataError, match="to read int16 or int32 rows"):
        changed(7, op.LayerNorm(("n8",), "last", good[7].params))
    with pytest.raises(DataError, match="one embedding"):
        changed(1, op.Embed("n", good[0].params))


def _rest(step, count=None):
    return step.params.bias[:count], step.params.multiplier[:count]


def test_two_lines_run_as_the_reference_and_are_exported_as_two(tmp_path):
    program = decoder()
    wide = HeadParams(B=[900, 700], S=[3, 4], D=[60, 50], S2=[20, 10], D2=[30, 20])
    changed = tuple(
        replace(step, theta=wide) if isinstance(step, op.Attention) else step for step in program.operators
    )
    model = IntegerModel(replace(program, operators=changed))
    ids = np.arange(24).reshape(2, 12)
    found = model(ids).scores
    assert np.array_equal(found, model(ids, reference=True).scores)
    assert not np.array_equal(found, IntegerModel(program)(ids).scores)
    model.save(tmp_path / "model.hccs")
    assert np.array_equal(IntegerModel.load(tmp_path / "model.hccs")(ids).scores, found)
    written = export_c_model(model, tmp_path / "c")
    assert "{900, 3, 60, 20, 30, 0, " in (written.folder / "hccs_weights.c").read_text()
    lines = [node for node in onnx_program(model.program).graph.node if node.op_type == "MatMulInteger"]
    single = [node for node in onnx_program(program).graph.node if node.op_type == "MatMulInteger"]
    assert len(lines) == len(single) + 1
