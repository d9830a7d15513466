"""What a file says about its texts: settings, tokenizer, and how they survive."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hccs.errors import DataError, FileError
from hccs.program import IntegerModel, TextSettings, files
from tests.program.programs import LONGEST, random_embedder, random_program

GOOD = {"kind": "embeddings", "max_length": 12, "prompts": {"q": "query: "}, "default_prompt": "q"}


def test_settings_are_json() -> None:
    settings = TextSettings.from_json(GOOD)
    assert json.loads(json.dumps(settings.as_json())) == {**GOOD, "similarity": "cosine"}
    assert TextSettings.from_json(settings.as_json()) == settings
    assert str(settings) == "embeddings, up to 12 tokens, prompts q (default q)"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "vectors"},
        {"kind": None},
        {"max_length": 0},
        {"max_length": 1.0},
        {"max_length": True},
        {"prompts": ["q"]},
        {"prompts": {"q": 1}},
        {"prompts": {"q": "a", "": "b"}},
        {"default_prompt": "other"},
        {"similarity": "dot"},
        {"unknown": 1},
    ],
)
def test_other_settings_are_refused(changes) -> None:
    with pytest.raises(DataError, match=r"docs/embeddings\.md"):
        TextSettings.from_json({**GOOD, **changes})


@pytest.mark.parametrize("given", [None, [], "embeddings", {}, {"kind": "tag"}])
def test_settings_are_a_mapping_with_a_kind_and_a_length(given) -> None:
    with pytest.raises(DataError, match="text settings"):
        TextSettings.from_json(given)


def labelled(seed: int):
    program = random_program(seed)
    return program, "tag" if program.per_token else "classify"


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_a_kind_fits_the_programs_answers(seed: int) -> None:
    program, own = labelled(seed)
    for kind in ("embeddings", "rerank", "classify", "tag"):
        facts = {"text": {"kind": kind, "max_length": 3}}
        if kind == own or (own, kind) == ("classify", "rerank"):
            assert replace(program, facts=facts).text.kind == kind
        else:
            with pytest.raises(DataError, match=f"for {kind}"):
                replace(program, facts=facts)


def test_what_does_not_fit_a_program_is_refused() -> None:
    program = random_embedder(0)
    with pytest.raises(DataError, match=f"up to {LONGEST}"):
        replace(program, facts={"text": {**GOOD, "max_length": LONGEST + 1}})
    with pytest.raises(DataError, match="for embeddings"):  # a vector per token
        replace(random_embedder(4), facts={"text": GOOD})
    with pytest.raises(DataError, match="images"):
        replace(random_program(3), facts={"text": {"kind": "classify", "max_length": 1}})
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        replace(program, tokenizer=b"{}")


def test_a_file_holds_the_tokenizer_outside_its_header(tmp_path) -> None:
    text = json.dumps({"words": ["\u4e2d", "\U0001f600"] * 20000})
    IntegerModel(replace(random_embedder(0), tokenizer=text, facts={"text": GOOD})).save(tmp_path / "m.hccs")
    header = int.from_bytes((tmp_path / "m.hccs").read_bytes()[:8], "little")
    assert header < 20000 < len(text)
    program = files.load(tmp_path / "m.hccs")
    assert program.tokenizer == text and program.text == TextSettings.from_json(GOOD)


def test_a_tokenizer_that_is_no_text_is_refused(tmp_path) -> None:
    import numpy as np

    files.save(random_embedder(0), tmp_path / "m.hccs")
    arrays, metadata = files.FORMAT.load(tmp_path / "m.hccs")
    arrays = {**arrays, "tokenizer.json": np.array([0xFF, 0xFE], np.uint8)}
    files.FORMAT.save(tmp_path / "m.hccs", arrays, {"program": metadata["program"]})
    with pytest.raises(FileError, match="utf-8"):
        files.load(tmp_path / "m.hccs")
