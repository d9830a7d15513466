"""The model that ships: its fingerprint is the one that README shows, and it knows what texts mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("hccs_minilm_l6")

import hccs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def encoder() -> hccs.Encoder:
    return hccs.Encoder.load("all-MiniLM-L6-v2")


def test_the_fingerprint_is_the_one_of_the_readme(encoder: hccs.Encoder, instruction_set: str) -> None:
    model = hccs.IntegerModel(encoder.model.program)  # compiled for the instruction set in use
    assert model.fingerprint() == encoder.model.program.facts["fingerprint"]
    assert model.fingerprint() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_reference_computes_the_same_vector(encoder: hccs.Encoder) -> None:
    ids = [[101, 2129, 2079, 1045, 25141, 102]]
    fast, readable = (encoder.model(ids, reference=reference).scores for reference in (False, True))
    np.testing.assert_array_equal(fast, readable)


def test_texts_of_one_meaning_are_close(encoder: hccs.Encoder) -> None:
    cards = ["How do I reset my PIN?", "I forgot the code of my card."]
    texts = [*cards, "The soup was cold.", "Lunch was not warm."]
    cosines = encoder.similarity(encoder.encode(texts), encoder.encode(texts))
    assert cosines[0, 1] > cosines[0, 2] + 0.2 and cosines[2, 3] > cosines[0, 3] + 0.2
    assert encoder.dims == 384 and encoder.max_length == 256
