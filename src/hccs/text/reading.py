"""From texts to tokens: the tokenizer of a program's file, and what is no text."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._extras import require
from hccs.errors import DataError, DtypeError, FileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.program.program import Program


class Reader:
    """A program's tokenizer, which cuts texts at `max_length` tokens and warns once that it did."""

    def __init__(self, program: Program, max_length: int) -> None:
        if not program.tokenizer:
            raise FileError(
                "a model with its tokenizer",
                "a file without one",
                "Lower it with the text of its tokenizer.json; IntegerModel takes token ids.",
            )
        tokenizers = require("tokenizers", "text", "to read texts")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(program.tokenizer)
        except Exception as error:  # the package raises bare exceptions
            raise FileError(
                "a tokenizer.json that this version of tokenizers reads",
                str(error)[:200],
                "Update tokenizers.",
            ) from error
        own = self._tokenizer.truncation or {}
        self._tokenizer.no_padding()
        try:
            self._tokenizer.enable_truncation(
                max_length,
                strategy=own.get("strategy", "longest_first"),
                direction=own.get("direction", "right"),
            )
        except Exception as error:
            raise FileError(
                "room for texts beside special tokens", str(error)[:200], "Lower it for more."
            ) from error
        self.max_length = max_length
        self._warned, self._lock = False, threading.Lock()

    def read(self, texts: Sequence[Any], *, offsets: bool = False, words: bool = False) -> list[Any]:
        """Encodings of texts and pairs, or of lists of `words`; with `offsets` they know tokens' places."""
        read = self._tokenizer.encode_batch if offsets or words else self._tokenizer.encode_batch_fast
        try:
            found: list[Any] = read(texts, is_pretokenized=words)
        except (UnicodeError, TypeError) as error:
            raise DataError(
                "texts that UTF-8 can write", f"half a surrogate pair ({error})", "Repair it."
            ) from error
        if any(not encoding.ids for encoding in found):
            raise DataError(
                "at least one token in every text",
                "a text without any, and a tokenizer without special tokens",
                "Leave empty texts out.",
            )
        return found

    def warn_of_cut(self, cut: int, count: int) -> None:
        """Tell how many of so many texts were cut, the first time that some were."""
        with self._lock:
            if not cut or self._warned:
                return
            self._warned = True
        warnings.warn(
            f"{cut} of {count} texts have more than {self.max_length} tokens: the rest was not read",
            UserWarning,
            stacklevel=4,
        )


def list_of_texts(given: Any, *, pairs: bool = False) -> list[Any]:
    """Texts as a list, with `pairs` tuples of two among them; anything else is refused."""
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise DtypeError("a text or a list of texts", _kind(given), "Pass str, or a list of str.")
    texts = list(given)
    for number, text in enumerate(texts):
        if isinstance(text, str):
            continue
        pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(t, str) for t in text)
        if not (pairs and pair):
            wanted = "texts or pairs of texts" if pairs else "texts"
            raise DtypeError(
                f"{wanted}: str in a flat list", f"{_kind(text)} as number {number}", "Decode or flatten it."
            )
        texts[number] = tuple(text)
    return texts


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def padded(rows: Sequence[Sequence[int]], n: int) -> NDArray[np.int64]:
    """Rows of integers as one array, with zeros at their ends."""
    array = np.zeros((len(rows), n), np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
