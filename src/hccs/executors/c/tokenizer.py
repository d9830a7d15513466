"""A tokenizer.json as tables for `hccs_tokenizer.h`: WordPiece (BERT) and byte-level BPE (RoBERTa, GPT-2).

What becomes of a code point is asked of `tokenizers` itself, for all of Unicode: the tables hold its answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hccs._extras import require
from hccs.errors import ModelError
from hccs.program import TextSettings

LARGEST_TOKEN = 0xFFFF
"""Of byte-level BPE, whose pairs of tokens are 32 bits."""

KINDS = (
    "DROPPED", "SPACE", "WORD", "LETTER", "ALONE", "UNKNOWN", "UNKNOWN_ALONE", "SEVERAL", "HANGUL",
    "OTHER", "NUMBER",
)  # fmt: skip
HANGUL = range(0xAC00, 0xD7A4)
FIRST, SECOND = -1, -2
_SEPARATOR = "|"
"""A code point that no normaliser of BERT changes and that nothing is ordered across."""


@dataclass(frozen=True, eq=False)
class Special:
    """A token that texts spell out; `late` ones are looked for between the others."""

    content: bytes
    id: int
    left: bool
    right: bool
    late: bool


@dataclass(frozen=True, eq=False)
class Tables:
    """What `hccs_tokenizer.h` needs: arrays by name, kinds and values of runs of code points."""

    runs: tuple[tuple[int, str, int], ...]
    sequences: tuple[int, ...]
    vocabulary: Mapping[str, Any]
    specials: tuple[Special, ...]
    single: tuple[tuple[int, int], ...]
    pair: tuple[tuple[int, int], ...]
    unknown: int
    most_characters: int
    prefix_space: bool
    longest: int

    @property
    def wordpiece(self) -> bool:
        return "words_letters" in self.vocabulary


def tables_of(text: str, settings: TextSettings) -> Tables:
    """The tables of a tokenizer.json; what the C code would read otherwise than `tokenizers` is refused."""
    tokenizers = require("tokenizers", "text", "to write its tokenizer")
    content, tokenizer = json.loads(text), tokenizers.Tokenizer.from_str(text)
    cut = tokenizer.truncation or {}
    _require("longest_first", cut.get("strategy", "longest_first"), "truncation")
    _require("right", cut.get("direction", "right"), "side of truncation")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model, normalizer = content["model"], content["normalizer"]
    common: dict[str, Any] = {
        "specials": tuple(_specials(content)),
        "single": _parts(tokenizer.encode("a")),
        "pair": _parts(tokenizer.encode("a", "a")),
        "longest": settings.max_length,
    }
    if model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "BPE") == "WordPiece":
        _require("BertNormalizer", (normalizer or {}).get("type"), "normalizer")
        _require("BertPreTokenizer", (content["pre_tokenizer"] or {}).get("type"), "pre_tokenizer")
        _require(False, any(special.late for special in common["specials"]), "normalized added tokens")
        vocabulary, prefix = model["vocab"], model["continuing_subword_prefix"]
        runs, sequences = _bert_runs(content, tokenizer, {letter for word in vocabulary for letter in word})
        following = {word[len(prefix) :]: i for word, i in vocabulary.items() if word.startswith(prefix)}
        found = {**_sorted("words", vocabulary), **_sorted("pieces", following)}
        unknown, most = vocabulary[model["unk_token"]], model["max_input_chars_per_word"]
        return Tables(
            runs, sequences, found, unknown=unknown, most_characters=most, prefix_space=False, **common
        )
    _require("BPE", model.get("type", "BPE"), "model")
    _require(None, normalizer, "normalizer")
    before = content["pre_tokenizer"] or {}
    _require("ByteLevel", before.get("type"), "pre_tokenizer")
    _require(True, before.get("use_regex", True), "use_regex")
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        _require(None, model.get(name) or None, name)
    for name in ("fuse_unk", "byte_fallback", "ignore_merges"):
        _require(False, model.get(name, False), name)
    found = _merges(model["vocab"], model["merges"])
    prefixed = before.get("add_prefix_space", True)
    runs = tuple(_runs(_pattern_kinds(tokenizers)))
    return Tables(runs, (), found, unknown=0, most_characters=1, prefix_space=prefixed, **common)


def _require(wanted: Any, got: Any, what: str) -> None:
    if wanted != got:
        raise ModelError(
            f"a tokenizer of BERT (WordPiece), RoBERTa or GPT-2 (byte-level BPE): {what} {wanted!r}",
            repr(got),
            "Tokenize elsewhere, and give token ids.",
        )


def _specials(content: Mapping[str, Any]) -> Iterator[Special]:
    normalised = content["normalizer"] is not None or content["model"].get("type") == "BPE"
    for token in content["added_tokens"]:
        _require(False, token["single_word"], "single_word")
        _require(token["content"].strip(), token["content"], "an added token without spaces at its ends,")
        late = token["normalized"] and normalised
        yield Special(token["content"].encode(), token["id"], token["lstrip"], token["rstrip"], late)


def _parts(encoding: Any) -> tuple[tuple[int, int], ...]:
    """What stands around the texts, and their own places: ids, or `FIRST` and `SECOND`, with types."""
    parts: list[tuple[int, int]] = []
    for number, kind, sequence in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        part = (number if sequence is None else (FIRST, SECOND)[sequence], kind)
        if sequence is None or part not in parts:
            parts.append(part)
    return tuple(parts)


def _sorted(name: str, entries: Mapping[str, int]) -> dict[str, Any]:
    """Entries in the order of their bytes, for `hccs_words`."""
    order = sorted((word.encode(), number) for word, number in entries.items())
    starts = np.cumsum([0, *(len(word) for word, _ in order)])
    return {
        f"{name}_letters": np.frombuffer(b"".join(word for word, _ in order), np.uint8),
        f"{name}_starts": starts.astype(np.uint32),
        f"{name}_ids": np.array([number for _, number in order], np.int32),
    }


def _merges(vocabulary: Mapping[str, int], merges: Sequence[Any]) -> dict[str, Any]:
    """Ids of bytes, and pairs in ascending order with their ranks, for `hccs_merges`."""
    _require(
        True, max([len(merges), *vocabulary.values()]) < LARGEST_TOKEN, "at most 65,535 tokens and merges:"
    )
    names = _byte_names()
    missing = [byte for byte in range(256) if names[byte] not in vocabulary]
    _require([], missing, "bytes without a token")
    pairs = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pairs[vocabulary[left] << 16 | vocabulary[right]] = (rank, vocabulary[left + right])
    order = sorted(pairs)
    return {
        "bytes": np.array([vocabulary[names[byte]] for byte in range(256)], np.uint16),
        "pairs": np.array(order, np.uint32),
        "ranks": np.array([pairs[pair][0] for pair in order], np.uint16),
        "made": np.array([pairs[pair][1] for pair in order], np.uint16),
    }


def _byte_names() -> list[str]:
    """GPT-2's letters of bytes: printable ones for themselves, the others from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _code_points() -> list[str]:
    """All of Unicode; one code point stands for each stretch without assignments, or of private use."""
    ranges = ((0, 0xD800), (0xE000, 0x40001), (0xE0000, 0xF0001), (0xFFFFE, 0x100001), (0x10FFFE, 0x110000))
    return [chr(code) for ends in ranges for code in range(*ends)]


@lru_cache(maxsize=4)
def _normalised(parts: str) -> tuple[dict[str, str], set[str], set[str], set[str]]:
    """What a normaliser makes of every code point; all of it, and which of it stands alone or is space."""
    tokenizers = require("tokenizers", "text", "to write its tokenizer")
    model = {
        "type": "WordPiece",
        "unk_token": "",
        "continuing_subword_prefix": "",
        "max_input_chars_per_word": 1,
    }
    content = {"version": "1.0", "added_tokens": [], "model": {**model, "vocab": {}}, **json.loads(parts)}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    normalise = tokenizer.normalizer.normalize_str
    letters = [letter for letter in _code_points() if letter != _SEPARATOR]
    made = dict(zip(letters, normalise(_SEPARATOR.join(letters)).split(_SEPARATOR), strict=True))
    made[_SEPARATOR] = normalise(_SEPARATOR)
    outputs = {letter for text in made.values() for letter in text}
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a" + "a".join(outputs) + "a")]
    alone = {word for word in words if len(word) == 1 and word != "a"}
    return made, outputs, alone, outputs - {letter for word in words for letter in word}


def _bert_runs(
    content: Mapping[str, Any], tokenizer: Any, alphabet: set[str]
) -> tuple[tuple[tuple[int, str, int], ...], tuple[int, ...]]:
    """What BERT's normaliser and pre-tokenizer make of every code point, and the sequences among them.

    A letter that no entry of the vocabulary has makes its word unknown, whatever letter it is.
    """
    made, outputs, alone, spaces = _normalised(
        json.dumps({part: content[part] for part in ("normalizer", "pre_tokenizer")})
    )
    sequences: list[int] = []

    def kind(letter: str) -> tuple[str, int]:
        text = made[letter]
        parts = text.strip(" ")
        if not parts or parts in spaces:
            return ("SPACE" if text else "DROPPED"), 0
        apart = len(parts) < len(text) or parts in alone
        if len(parts) == 1 and parts in alphabet:
            return ("ALONE" if apart else "WORD"), ord(parts) - ord(letter)
        if ord(letter) in HANGUL and made["\uac01"] == "\u1100\u1161\u11a8":
            return "HANGUL", 0
        if len(parts) == 1 or (not apart and not {*parts} & (alone | spaces) and not {*parts} <= alphabet):
            return ("UNKNOWN_ALONE" if apart else "UNKNOWN"), 0
        _require(parts, "".join(map(made.__getitem__, parts)), f"{parts!r} for {letter!r} to stay as it is,")
        sequences.extend([len(parts), *map(ord, parts)])
        return "SEVERAL", len(sequences) - len(parts) - 1

    kinds = {letter: kind(letter) for letter in made}
    _require_any_order(tokenizer.normalizer.normalize_str, alphabet & outputs)
    return tuple(_runs(kinds)), tuple(sequences)


def _require_any_order(normalise: Any, kept: set[str]) -> None:
    """Refuse letters that a normaliser sorts: accents that stay, by their classes."""
    marks = ("\u0334", "\u0301", "\u1dce", "\u0345")  # of the classes 1, 230, 214 and 240
    for text in (pair for letter in kept for mark in marks for pair in (letter + mark, mark + letter)):
        _require("".join(map(normalise, text)), normalise(text), "letters in their order")


def _pattern_kinds(tokenizers: Any) -> dict[str, tuple[str, int]]:
    """Letters, numbers, spaces and others, as GPT-2's pattern tells them apart."""
    letters = _code_points()
    kinds = dict.fromkeys(letters, ("OTHER", 0))
    for kind, pattern in (("WORD", r"[^\p{L}]+"), ("NUMBER", r"[^\p{N}]+"), ("SPACE", r"\S+")):
        cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
        kinds |= {letter: (kind, 0) for word, _ in cut.pre_tokenize_str("".join(letters)) for letter in word}
    return kinds


def _runs(kinds: Mapping[str, tuple[str, int]]) -> Iterator[tuple[int, str, int]]:
    """Runs of code points: first, kind and value. Several letters of a word may be one `LETTER`."""
    letters = [(ord(letter), *kinds[letter]) for letter in sorted(kinds)]
    at = 0
    while at < len(letters):
        code, kind, value = letters[at]
        end = constant = at + 1
        while end < len(letters) and letters[end][1:] == (kind, value):
            end += 1
        while kind == "WORD" and constant < len(letters):
            if letters[constant][1] != kind or letters[constant][0] + letters[constant][2] != code + value:
                break
            constant += 1
        yield (code, kind, value) if end >= constant else (code, "LETTER", code + value)
        at = max(end, constant)
