"""Texts in C: the ids of `tokenizers`, and models that answer from UTF-8."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hccs.errors import ModelError
from hccs.export import export_c_model
from tests.export.c_tokenizer import (
    BERT,
    BPE,
    LONGEST,
    PASSAGES,
    InC,
    differences,
    random_inputs,
    tokenizer_json,
)
from tests.export.compilers import in_c, make, require_pass
from tests.text.models import embedder, scorer, tokenizer, with_texts

pytestmark = in_c
DATA = Path(os.environ.get("HCCS_DATA", Path(__file__).parents[3] / "shared" / "data"))
MOST_FLASH = 24 * 1024


QUICK = ("uncased", "cased", "GPT-2", "RoBERTa")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.tokenizer) for name in (*BERT, *BPE)]


@pytest.fixture(scope="module", params=ALL)
def tokenized(request, tmp_path_factory):
    return InC(tokenizer_json(request.param), tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def uncut(tokenized, tmp_path_factory):
    return InC(tokenized.text, tmp_path_factory.mktemp("uncut"), 8192, "-DHCCS_LONGEST_WORD=32768")


def test_random_texts_and_pairs_have_the_ids_of_tokenizers(tokenized):
    assert differences(tokenized, random_inputs(1, 1500) + PASSAGES.read_text().splitlines()) == []


@pytest.mark.tokenizer
def test_100_000_texts_have_the_ids_of_tokenizers(tokenized, uncut):
    for seed in range(20):
        assert differences(uncut if seed % 2 else tokenized, random_inputs(100 + seed, 5000)) == []


@pytest.mark.tokenizer
def test_every_line_of_the_data_sets(uncut):
    files = sorted([*DATA.glob("*/*.tsv"), *DATA.glob("*/*.csv")])
    if not files:
        pytest.skip("no data sets: name their folder in HCCS_DATA")
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        for start in range(0, len(lines), 10_000):
            assert differences(uncut, lines[start : start + 10_000]) == [], file


def test_what_is_no_utf8_is_refused(tmp_path):
    in_c = InC(tokenizer(), tmp_path)
    bad = [
        b"\xff",
        b"a\xc3",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe0\x80\x80",
        b"\x80",
        b"\xf0\x9f\x98",
    ]
    assert [in_c(text)[0] for text in bad] == [2] * len(bad)
    assert in_c("a", b"\xff")[0] == 2
    assert in_c("the cat\0 sat")[1] == in_c("the cat sat")[1]


def test_words_too_long_to_merge_are_refused(tmp_path):
    in_c = InC(tokenizer_json("GPT-2"), tmp_path, LONGEST, "-DHCCS_LONGEST_WORD=16")
    assert in_c("x" * 16)[0] == 0 and in_c("x" * 17)[0] == 3 and in_c(" " + "x" * 16)[0] == 3


@pytest.mark.parametrize(
    ("part", "change", "named"),
    [
        ("normalizer", {"type": "NFKC"}, "BertNormalizer"),
        ("pre_tokenizer", {"type": "Whitespace"}, "BertPreTokenizer"),
        ("truncation", {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
         "right"),
        ("added_tokens", [{"id": 1, "content": "x", "single_word": True, "lstrip": False, "rstrip": False,
                           "normalized": False, "special": False}], "single_word"),
    ],
)  # fmt: skip
def test_other_tokenizers_are_refused_and_named(part, change, named, tmp_path):
    content = json.loads(tokenizer())
    content[part] = change
    with pytest.raises(ModelError, match=named):
        InC(json.dumps(content), tmp_path)
    model = with_texts(scorer(("no", "yes")), "classify", read=json.dumps(content))
    written = export_c_model(model, tmp_path / "c")
    assert named in written.without_text and not (written.folder / "hccs_text.c").exists()


@pytest.mark.parametrize("kind", ["embeddings", "classify"])
def test_models_answer_from_text(kind, tmp_path):
    model = embedder(5) if kind == "embeddings" else with_texts(scorer(("no", "yes")), "classify")
    written = export_c_model(model, tmp_path / "c")
    assert written.without_text == "" and written.examples > 12
    for target in ("check", "sanitize"):
        require_pass(
            make(written.folder, target), written.examples, "values" if kind == "embeddings" else "scores"
        )
    source = (written.folder / "hccs_text.c").read_text()
    (written.folder / "hccs_text.c").write_text(
        source.replace("{{single, pair}", "{{pair, pair}").replace("{single, pair}", "{pair, pair}")
    )
    assert make(written.folder, "check").returncode != 0


def test_the_flash_of_berts_tokenizer(tmp_path):
    """Its code and what it knows of Unicode, without the vocabulary."""
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("not installed: gcc-arm-none-eabi")
    InC(tokenizer_json("uncased"), tmp_path)
    flags = ["-mcpu=cortex-m3", "-mthumb", "-Os", "-std=c99", "-ffreestanding", "-c", "-I."]
    include = str(PASSAGES).replace("wasm/sources/passages.txt", "c/sources")
    subprocess.run(["arm-none-eabi-gcc", *flags, f"-I{include}", "hccs_text.c"], check=True, cwd=tmp_path)
    said = subprocess.run(
        ["arm-none-eabi-size", "hccs_text.o"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    flash = int(re.search(r"\n\s*(\d+)", said.stdout).group(1))
    assert 4096 < flash <= MOST_FLASH
