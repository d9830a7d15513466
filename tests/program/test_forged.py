"""Programs made by hand, or forged: what does not fit together is refused where it is constructed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import DataError, FileError, HccsError, MaskError
from hccs.numbers.layers import LinearParams
from hccs.numbers.requant import Requant
from hccs.program import IntegerModel, Program, files
from hccs.program import operators as op
from tests.program.programs import Builder, random_program
from tests.program.test_program import batch, small_program
from tests.program.test_values import decoder, patches


def changed(output: str, **fields) -> Program:
    """The small program with other fields in the operator that writes a value."""
    program = small_program()
    steps = [replace(step, **fields) if step.output == output else step for step in program.operators]
    return replace(program, operators=tuple(steps))


def changed_params(output: str, **fields) -> Program:
    step = next(step for step in small_program().operators if step.output == output)
    return changed(output, params=replace(step.params, **fields))


def renamed(old: str, new: str) -> Program:
    program = small_program()
    steps = [
        replace(
            step,
            inputs=tuple(new if name == old else name for name in step.inputs),
            output=new if step.output == old else step.output,
        )
        for step in program.operators
    ]
    return replace(program, operators=tuple(steps))


@pytest.mark.parametrize("first", [-1, -3, -(10**7), 12, 10**9, "1", 1.0, True, None])
def test_first_positions_lie_among_the_positions(first):
    with pytest.raises(DataError, match=r"first_position|positions for"):
        changed("embedded", first_position=first)


@pytest.mark.parametrize("limit", [0, 1, -1, 126, 128, 32766, 32768, None, "127"])
def test_limits_of_layers_are_those_of_int8_and_int16(limit):
    with pytest.raises(DataError, match=r"a limit of 127, 32767, 2\^17 or 2\^30 - 1"):
        changed_params("qkv", limit=limit)


@pytest.mark.parametrize("limit", [0, -1, 1, 126, 129])
def test_input_limits_are_those_of_int8(limit):
    with pytest.raises(DataError, match="an input limit of 127 or 128"):
        changed_params("qkv", input_limit=limit)


def test_sums_that_leave_int32_for_values_that_come_are_refused():
    """Attention's outputs reach -128; the layer was checked for 127 alone."""
    edge = 2**31 - 1 - 127 * 127 * 16
    full, bias = np.full((16, 16), 127, np.int8), np.full(16, edge, np.int32)
    with pytest.raises(DataError, match=r"below 2\^31"):
        changed("part", params=LinearParams(full, bias, np.ones(16, np.int32), 32767, 127))


@pytest.mark.parametrize("name", ["x.first", "x8.q", "qkv.kv", "embedded.pixels", "context.logits", "", 7])
def test_names_of_a_plan_are_its_own(name):
    with pytest.raises(DataError, match="names of values"):
        renamed("x", name)


def test_scores_end_a_program_and_stand_nowhere_else():
    program = small_program()
    scores = LinearParams(np.eye(16, dtype=np.int8), np.zeros(16, np.int32), None, input_limit=128)
    steps = [
        replace(step, params=scores) if step.output == "part" else
        replace(step, inputs=("part",)) if step.output == "y" else step
        for step in program.operators if step.output != "sum"
    ]  # fmt: skip
    with pytest.raises(DataError, match="ends with int32 scores, and has no others"):
        replace(program, operators=tuple(steps))
    with pytest.raises(DataError, match="ends with int32 scores"):
        replace(program, operators=())


@pytest.mark.parametrize("labels", [(), ("no",), ("a", "b", "c", "d"), ("a", "b", 3)])
def test_every_score_has_a_label(labels):
    with pytest.raises(DataError, match="3 labels, one per score"):
        replace(small_program(), labels=labels)


@pytest.mark.parametrize("longest", ["64", 0, -1, 2.0, True, None])
def test_longest_is_a_number_of_tokens(longest):
    with pytest.raises(DataError, match="longest, at least 1 token"):
        replace(small_program(), longest=longest)


def test_there_is_a_position_for_every_token():
    with pytest.raises(DataError, match="positions for 13 tokens from 0 on"):
        replace(small_program(), longest=13)
    with pytest.raises(DataError, match="positions for 12 tokens from 1 on"):
        changed("embedded", first_position=1)


@pytest.mark.parametrize("scale", ["0.1", float("nan"), float("inf"), None])
def test_scales_are_numbers(scale):
    with pytest.raises(DataError, match="score_scale"):
        replace(small_program(), score_scale=scale)
    with pytest.raises(DataError, match="x to be a finite number"):
        replace(small_program(), scales={"x": scale})


def test_constants_that_the_engine_cannot_take_are_refused():
    step = next(step for step in small_program().operators if step.output == "context")
    no_output = Requant(step.requant.logits, step.requant.v_scale)
    words = small_program().operators[0].params.words.copy()
    words[3, 2] = -128
    for output, fields in (
        ("embedded", {"limit": 0}), ("embedded", {"limit": 32768}), ("x8", {"bits": -1}),
        ("x8", {"bits": 32}), ("x8", {"bits": "7"}), ("sum", {"limit": 0}),
        ("tanh", {"entries": np.zeros(255, np.int8)}),
        ("tanh", {"entries": np.zeros(256, np.int16)}), ("context", {"causal": "yes"}),
        ("context", {"requant": no_output}), ("first", {"inputs": ()}), ("sum", {"inputs": ("x",)}),
        ("embedded", {"inputs": ("x",)}),
        ("embedded", {"params": replace(small_program().operators[0].params, words=words)}),
    ):  # fmt: skip
        with pytest.raises(DataError):
            changed(output, **fields)


def test_one_factor_for_all_heads_runs_everywhere(tmp_path):
    from hccs.executors.c.write import export_c_model

    step = next(step for step in small_program().operators if step.output == "context")
    one = Requant(*(type(f)(int(f.multiplier[0]), int(f.shift[0])) if f is not step.requant.v_scale else 1.0
                    for f in (step.requant.logits, step.requant.v_scale, step.requant.output)))  # fmt: skip
    assert one.shape == ()
    model = IntegerModel(changed("context", requant=one))
    np.testing.assert_array_equal(model(*batch()).scores, model(*batch(), reference=True).scores)
    assert (
        "hccs_attention_head" in (export_c_model(model, tmp_path / "c").folder / "hccs_weights.c").read_text()
    )


def test_a_mask_of_ids_is_the_attention_mask():
    model = IntegerModel(small_program())
    ids, mask, types = batch()
    for under in (0, 10**6):  # what lies under a mask is nobody's token
        masked = np.ma.array(np.where(mask == 1, ids, under), mask=mask == 0)
        np.testing.assert_array_equal(model(masked, None, types).scores, model(ids, mask, types).scores)
        np.testing.assert_array_equal(model(masked, mask, types).scores, model(ids, mask, types).scores)
    plain = np.ma.array(ids)
    np.testing.assert_array_equal(model(plain, mask, types).scores, model(ids, mask, types).scores)
    with pytest.raises(MaskError, match="holes"):
        model(np.ma.array([[1, 2, 3]], mask=[[0, 1, 0]]))
    with pytest.raises(MaskError, match="masked"):
        model(ids, np.ma.array(mask, mask=mask == 0), types)
    with pytest.raises(MaskError, match="masked"):
        model(ids, mask, np.ma.array(types, mask=mask == 0))


def test_a_masked_image_is_refused():
    model = IntegerModel(decoder(embed=op.EmbedPatches("x", patches()), causal=False))
    image = np.zeros((3, 8, 12), np.uint8)
    with pytest.raises(MaskError, match="images alone"):
        model(np.ma.array(image, mask=image == 0))


REPLACED = """
import os, sys
import numpy as np
import hccs
path, batch = sys.argv[1], np.load(sys.argv[2])
model = hccs.IntegerModel.load(path)
expected = model(*batch.values()).scores
with open(path, "r+b") as file:  # in place, as `cp` does
    file.write(b"\\xff" * os.path.getsize(path))
np.testing.assert_array_equal(model(*batch.values()).scores, expected)
with open(path, "r+b") as file:
    file.truncate(0)
np.testing.assert_array_equal(model(*batch.values(), reference=True).scores, expected)
np.testing.assert_array_equal(model(*batch.values()).scores, expected)
"""


def test_a_loaded_model_does_not_depend_on_its_file(tmp_path):
    """In a process of its own: reading a mapped file that was cut off kills the process."""
    IntegerModel(small_program()).save(tmp_path / "model.hccs")
    np.savez(tmp_path / "batch.npz", *batch())
    command = [sys.executable, "-c", REPLACED, str(tmp_path / "model.hccs"), str(tmp_path / "batch.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (([[1, 99]],), 0),
        ((np.array([[1, 99]]),), 1),
        ((np.array([[1, 2, 3]]), np.array([[1, 0, 1]])), 1),
        ((np.zeros((1, 13), int),), 1),
        ((np.array([[1.0, 2.0]]),), 0),
    ],
)
def test_the_engine_is_asked_once_about_invalid_input(given, asked, monkeypatch):
    model = IntegerModel(small_program())
    calls = []
    answer = type(model._engine).answer
    monkeypatch.setattr(
        type(model._engine), "answer", lambda self, *args: calls.append(args) or answer(self, *args)
    )
    with pytest.raises(HccsError):
        model(*given)
    assert len(calls) == asked


@pytest.mark.parametrize("dtype", [">i8", "<i4", "int64"])
def test_the_engine_runs_valid_input_of_any_form(dtype, monkeypatch):
    import hccs.executors.numpy

    model = IntegerModel(random_program(0))
    monkeypatch.setattr(hccs.executors.numpy, "run", None)
    for ids in (
        np.arange(6).reshape(2, 3).astype(dtype),
        [[1, 2, 3]],
        np.asfortranarray(np.ones((4, 5), int)),
    ):
        assert model(ids).scores.dtype == np.int32


@pytest.mark.parametrize(
    "forge",
    [
        lambda content: content["operators"][0].update(first_position=-3),
        lambda content: content.update(longest="64"),
        lambda content: content["operators"][3].update(limit=100),
        lambda content: content["operators"][1].update(kind="Nothing"),
        lambda content: content["operators"][2].update(bits="7"),
        lambda content: content["operators"][2].update(more=7),
        lambda content: content["labels"].append("more"),
        lambda content: content["operators"].append({}),
        lambda content: content["operators"].pop(),
        lambda content: content["operators"].pop(0),
        lambda content: content["operators"][3].pop("output"),
        lambda content: content.update(operators=7),
    ],
)
def test_a_forged_file_is_refused(forge, tmp_path):
    """With a checksum that fits: what construction refuses is refused by its file, too."""
    path = tmp_path / "model.hccs"
    files.save(small_program(), path)
    arrays, metadata = files.FORMAT.load(path, mapped=False)
    content = json.loads(metadata["program"])
    forge(content)
    files.FORMAT.save(path, arrays, {"program": json.dumps(content)})
    with pytest.raises(FileError, match="a consistent program"):
        IntegerModel.load(path)


def test_other_versions_of_the_format_are_refused(tmp_path):
    arrays, metadata = {}, {"program": "{}"}
    replace(files.FORMAT, version=2).save(tmp_path / "model.hccs", arrays, metadata)
    with pytest.raises(FileError, match="of version 1"):
        IntegerModel.load(tmp_path / "model.hccs")


@pytest.mark.parametrize("patch", [-3, 0, True, 1.0, "1", None])
def test_sides_of_patches_are_positive_integers(patch):
    built = Builder(3)
    built.patches(4)
    params = built.operators[0].params
    with pytest.raises(HccsError, match="positive integers"):
        replace(params, patch=patch)
    with pytest.raises(HccsError, match="positive integers"):
        replace(params, image=(*params.image[:2], patch))
