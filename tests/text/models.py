"""Small models of texts: a WordPiece tokenizer made here, and random programs that read its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

from hccs.numbers.layers import INT8_LIMIT, LinearParams
from hccs.program import IntegerModel, Program, TextSettings
from hccs.program import operators as op
from tests.program.programs import LONGEST, WORDS, Builder, random_embedder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":"]
PIECES = [*"abcdefghijklmnop", *(f"##{letter}" for letter in "abcdefghijklmnop"), "the", "cat", "sat", "."]
VOCABULARY = [*SPECIAL, *PIECES]
assert len(VOCABULARY) <= WORDS


def tokenizer(*, special: bool = True) -> str:
    """The text of a tokenizer.json like BERT's, of 42 words."""
    words = {word: number for number, word in enumerate(VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    if special:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])],
        )
    return made.to_str()


def with_texts(program: Program, kind: str, *, read: str | None = None, **settings: Any) -> IntegerModel:
    """The program with a tokenizer and text settings."""
    text = TextSettings(kind, **{"max_length": LONGEST, **settings}).as_json()
    facts = {**program.facts, "text": text}
    return IntegerModel(replace(program, tokenizer=tokenizer() if read is None else read, facts=facts))


PROMPTS: Mapping[str, str] = {"query": "query : ", "passage": "the "}


def embedder(seed: int = 0, **settings: Any) -> IntegerModel:
    """A model of unit vectors; the seed chooses the pooling: mean, first, last, max."""
    return with_texts(random_embedder(seed), "embeddings", **settings)


def wide_embedder() -> IntegerModel:
    """The first random embedder with many channels, whose vectors differ between texts."""
    seeds = (seed for seed in range(200) if seed % 5 == 0)
    found = next(p for p in map(random_embedder, seeds) if p.operators[-1].dims >= 24)
    return with_texts(found, "embeddings", prompts=PROMPTS)


def scorer(labels: tuple[str, ...], *, per_token: bool = False, seed: int = 3) -> Program:
    """A program of one block with attention that scores texts, or every token."""
    built = Builder(seed)
    x = built.norm(built.embed(32, None))
    y = built.linear(built.attend(built.linear(built.narrow(x), 96), 2, False), 32, 32767)
    x = built.narrow(built.norm(built.sum(x, y)))
    if not per_token:
        x = built.add(op.First, (x,), 32)
    weight = built.integers(-127, 127, (len(labels), 32), np.int8)
    params = LinearParams(weight, built.integers(-(2**10), 2**10, len(labels)), None, INT8_LIMIT, 128)
    built.add(op.Linear, (x,), len(labels), params)
    return Program(tuple(built.operators), labels, LONGEST, 0.0002)


def random_texts(seed: int, count: int, most: int = 12) -> list[str]:
    """Words of known and unknown letters, capitals and dots; some texts are empty."""
    rng = np.random.default_rng(seed)
    letters = np.array([*"abcdefghijklmnopzXY.", "the ", " cat"])
    return [
        " ".join("".join(rng.choice(letters, rng.integers(1, 4))) for _ in range(rng.integers(0, most)))
        for _ in range(count)
    ]
