"""Whole models in C: the reference's scores under every compiler, and an interface that refuses."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hccs.errors import DataError, FileError, ParameterError
from hccs.executors.c import model_source
from hccs.export import export_c_model
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import EmbeddingParams
from hccs.numbers.requant import FixedPoint, Requant
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from tests.export.compilers import COMPILERS, in_c, make, require_pass
from tests.export.programs import random_program
from tests.program.test_program import small_program
from tests.program.test_values import H, decoder, patches

pytestmark = in_c


@pytest.mark.parametrize("seed", range(4))
def test_programs_of_all_shapes_are_the_reference(seed: int, tmp_path: Path) -> None:
    """Each under one compiler, sanitized: out-of-bounds and undefined behaviour end the program."""
    written = export_c_model(IntegerModel(random_program(seed)), tmp_path / "c")
    require_pass(make(written.folder, "sanitize", f"CC={COMPILERS[seed % len(COMPILERS)]}"), 12)


@pytest.mark.parametrize("seed", range(3))
def test_two_lines_are_the_reference(seed: int, tmp_path: Path) -> None:
    """Scores of 16 and of 8 bits, sums of up to 18; sanitized."""
    program = random_program(seed, lines=2)
    forms = [step.theta for step in program.operators if isinstance(step, op.Attention)]
    assert all(theta.wide for theta in forms)
    written = export_c_model(IntegerModel(program), tmp_path / "c")
    require_pass(make(written.folder, "sanitize", f"CC={COMPILERS[seed % len(COMPILERS)]}"), 12)


def test_the_widest_sums_and_the_smallest_outputs(tmp_path: Path) -> None:
    """Z up to 2^24 - 512, N near 2^31, and a factor whose shift no integer of 64 bits could take."""
    rng, n = np.random.default_rng(0), 512
    tables = (rng.normal(0, 1, (40, H)), rng.normal(0, 0.01, (n, H)), np.zeros((1, H)))
    embed = op.Embed("x", EmbeddingParams.from_float(*tables, 0.008, 4), limit=32767)
    program = decoder(embed=embed, causal=False)
    steps = list(program.operators)
    at = next(number for number, step in enumerate(steps) if isinstance(step, op.Attention))
    heads = steps[at].heads
    flat = np.arange(heads) % 2  # every other head gives all keys nearly the same score
    theta = HeadParams([32767] * heads, np.where(flat, 0, 100), 127, np.where(flat, 1, 100), 50, 0)
    factors = FixedPoint(np.where(flat, 2**23, 1), np.where(flat, 23, 47))
    steps[at] = replace(
        steps[at], theta=theta, requant=Requant(steps[at].requant.logits, np.ones(heads), factors)
    )
    long = replace(program, operators=tuple(steps), longest=n)
    written = export_c_model(IntegerModel(long), tmp_path / "c", sequences=[rng.integers(0, 40, n), [3]])
    require_pass(make(written.folder, "sanitize"), 2)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_optimised_programs_are_the_reference(compiler: str, tmp_path: Path) -> None:
    written = export_c_model(IntegerModel(small_program()), tmp_path / "c")
    require_pass(make(written.folder, f"CC={compiler}", "CFLAGS=-O3"), 12)


def test_a_decoder_scores_every_token(tmp_path: Path) -> None:
    written = export_c_model(IntegerModel(decoder()), tmp_path / "c", sequences=[(1, 2), [7] * 12])
    require_pass(make(written.folder, "sanitize"), 2)
    assert "Scores [length][HCCS_MODEL_LABELS]" in (written.folder / "hccs_model.h").read_text()


def test_images_go_in_as_they_are(tmp_path: Path) -> None:
    model = IntegerModel(decoder(embed=op.EmbedPatches("x", patches()), causal=False))
    written = export_c_model(model, tmp_path / "c")
    require_pass(make(written.folder, "sanitize"), 3)
    header = (written.folder / "hccs_model.h").read_text()
    assert "uint8 [3][8][12]" in header and "hccs_model_knows" not in header
    with pytest.raises(DataError, match="a model of images"):
        export_c_model(
            model, tmp_path / "c", sequences=[np.zeros((3, 8, 12), np.uint8)], only_used_words=True
        )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_c_model(IntegerModel(small_program()), tmp_path_factory.mktemp("c") / "model").folder


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hccs_model.c", "hccs_table(hccs_11_tanh, ", "hccs_table(hccs_11_tanh + 1, "),
        ("hccs_weights.c", r"_bias\[16\] = \{\n    (-?\d+)", "_bias[16] = {\n    77777"),
        ("hccs_operators.h", "score = B - S * distance", "score = B - S * distance + 1"),
        ("hccs_examples.c", r"expected\[36\] = \{\n    -?\d+", "expected[36] = {\n    1"),
    ],
)
def test_the_check_notices_what_is_wrong(
    exported: Path, tmp_path: Path, file: str, old: str, new: str
) -> None:
    folder = shutil.copytree(exported, tmp_path / "c")
    text = (folder / file).read_text()
    pattern = old if "\\" in old else re.escape(old)
    changed, count = re.subn(pattern, new.replace("\\", r"\\"), text, count=1)
    assert count == 1
    (folder / file).write_text(changed)
    done = make(folder, "check")
    assert done.returncode != 0 and "FAIL" in done.stdout


def test_bad_calls_are_refused_and_leave_the_scores_alone(exported: Path, tmp_path: Path) -> None:
    source = tmp_path / "refusals.c"
    source.write_text(
        r"""
#include <stdio.h>
#include "hccs_model.h"
int main(void) {
  const int32_t good[13] = {1, 2, 3}, high[2] = {1, 40}, negative[2] = {-1, 2};
  const uint8_t types[2] = {0, 2};
  int32_t scores[3] = {9, 9, 9};
  printf("%d %d ", hccs_model_scores(good, NULL, 0, scores), hccs_model_scores(good, NULL, 13, scores));
  printf("%d %d ", hccs_model_scores(high, NULL, 2, scores), hccs_model_scores(negative, NULL, 2, scores));
  printf("%d ", hccs_model_scores(good, types, 2, scores));
  printf("%d %d %d ", (int)scores[0], (int)scores[1], (int)scores[2]);
  printf("%d %d %d ", hccs_model_knows(39), hccs_model_knows(40), hccs_model_knows(-1));
  printf("%s [%s] ", hccs_model_label(2), hccs_model_label(3));
  printf("%d: ", hccs_model_scores(good, NULL, 3, scores));
  printf("%d", (int)scores[0]);
  return 0;
}
"""
    )
    program = tmp_path / "refusals"
    sources = [source, *(exported / name for name in ("hccs_model.c", "hccs_weights.c")), f"-I{exported}"]
    subprocess.run([COMPILERS[0], "-std=c99", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    expected = IntegerModel(small_program())([[1, 2, 3]]).scores[0, 0]
    assert done.stdout == f"1 1 2 2 3 9 9 9 1 0 0 yes [] 0: {expected}"


def test_only_used_words_are_kept(tmp_path: Path) -> None:
    model = IntegerModel(small_program())
    sequences = [[3, 17, 3, 39], [5], [17, 8]]
    everything = export_c_model(model, tmp_path / "all", sequences=sequences)
    written = export_c_model(model, tmp_path / "used", sequences=sequences, only_used_words=True)
    assert (everything.word_bytes, written.word_bytes) == (40 * 16, 5 * (16 + 4))
    require_pass(make(written.folder, "sanitize"), 3)
    source = tmp_path / "knows.c"
    source.write_text(
        '#include <stdio.h>\n#include "hccs_model.h"\nint main(void) { int32_t i, s[3];\n'
        'for (i = -1; i < 42; ++i) if (hccs_model_knows(i)) printf("%d ", (int)i);\n'
        'i = 4; printf("%d", hccs_model_scores(&i, NULL, 1, s)); return 0; }\n'.replace("NULL", "0")
    )
    sources = [source, *(written.folder / name for name in ("hccs_model.c", "hccs_weights.c"))]
    program = tmp_path / "knows"
    subprocess.run([COMPILERS[0], f"-I{written.folder}", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "3 5 8 17 39 2"
    with pytest.raises(DataError, match="whose words to keep"):
        export_c_model(model, tmp_path / "used", only_used_words=True)


def test_the_folder_is_an_export_like_the_others(exported: Path, tmp_path: Path) -> None:
    model = IntegerModel(small_program())
    folder = shutil.copytree(exported, tmp_path / "c")
    assert make(folder, "check").returncode == 0
    export_c_model(model, folder)
    (folder / "main.c").write_text("precious")
    with pytest.raises(FileError, match=r"no export wrote: main\.c"):
        export_c_model(model, folder)
    with pytest.raises(DataError, match="input_ids from 0 to 39"):
        export_c_model(model, tmp_path / "other", sequences=[[40]])
    assert not (tmp_path / "other").exists()


def test_programs_that_c_could_not_hold_are_refused(tmp_path: Path) -> None:
    good = small_program()
    with pytest.raises(DataError, match="positions for 13 tokens"):
        Program(good.operators, good.labels, 13, good.score_scale)
    attention = replace(good.operators[4], theta=HeadParams(B=[3000] * 2, S=[5] * 2, D=[40] * 2))
    wide = Program((*good.operators[:4], attention, *good.operators[5:]), good.labels, 12, good.score_scale)
    with pytest.raises(ParameterError, match="columns"):
        export_c_model(IntegerModel(wide), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_labels_of_any_kind_are_names_in_c(tmp_path: Path) -> None:
    good = small_program()
    labels = ('"quoted"', "back\\slash ?" + "?/", "naïve\n")
    model = IntegerModel(Program(good.operators, labels, 12, good.score_scale))
    written = export_c_model(model, tmp_path / "c")
    done = make(written.folder, "check")
    require_pass(done, 12)
    assert all(label.rstrip() in done.stdout for label in labels)
    assert doctest.testmod(model_source).failed == 0


def test_constants_are_what_was_announced(exported: Path, tmp_path: Path) -> None:
    written = export_c_model(IntegerModel(small_program()), tmp_path / "c")
    assert make(written.folder, "check").returncode == 0
    sizes = subprocess.run(
        ["size", "-A", written.folder / "build" / "weights.o"], capture_output=True, text=True, check=True
    ).stdout
    held = sum(
        int(size) for size in re.findall(r"^\.(?:data\.rel\.ro\S*|rodata\S*)\s+(\d+)", sizes, re.MULTILINE)
    )
    structures = held - written.constant_bytes
    assert 0 <= structures < 1500  # of every operator, and what aligns them


def test_generated_sources_name_the_rules() -> None:
    """Every function of the operators' file is a rule of the law, by the name that docs/spec.md gives it."""
    root = Path(__file__).parents[2]
    operators = (root / "src/hccs/executors/c/sources/hccs_operators.h").read_text(encoding="utf-8")
    law = (root / "docs" / "spec.md").read_text(encoding="utf-8").casefold()
    rules = re.findall(r'"([A-Za-z ]+)"', operators)
    assert {"linear", "LayerNorm", "embedding", "Integer attention", "One row"} <= set(rules)
    assert [rule for rule in rules if rule.casefold() not in law] == []
