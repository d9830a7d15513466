"""What all models of texts share: a file with its tokenizer, what is no text, and batches of like lengths."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hccs._extras import require
from hccs._progress import Bar
from hccs.errors import DataError, DtypeError, FileError, ModelError, ParameterError
from hccs.ops.arguments import require_threads
from hccs.program.files import find
from hccs.program.model import IntegerModel
from hccs.program.program import CLASSIFY, EMBEDDINGS, GENERATE, RERANK, TAG, Program, TextSettings

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_TOKENS = 8192
"""Tokens of a batch: enough for every thread, and memory stays bounded."""

MOST_TOKENS_ON_GPU = 4 * MOST_TOKENS
"""The same for a GPU, which smaller batches do not fill."""

MOST_TEXTS = 4096
"""Texts that are read before they are sorted into batches."""

CLASSES = {
    EMBEDDINGS: "Encoder",
    RERANK: "Reranker",
    CLASSIFY: "Classifier",
    TAG: "Tagger",
    GENERATE: "Generator",
}


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model answers to texts: rows of integers, the tokens read of each text, and which were cut."""

    rows: NDArray[Any]
    tokens: NDArray[np.int64]
    cut: NDArray[np.bool_]


class TextModel:
    """A model of texts over an `IntegerModel`; many threads of Python may share one."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, model: IntegerModel) -> None:
        settings = self._settings_of(model)
        if settings is None:
            raise ModelError(
                "a model with text settings", "one without facts['text']", "IntegerModel takes token ids."
            )
        if settings.kind not in self.kinds:
            raise ModelError(
                f"a model for hccs.{type(self).__name__}",
                f"one for {settings.kind}",
                f"Use hccs.{CLASSES[settings.kind]}.",
            )
        self.model = model
        self.settings: TextSettings = settings
        self._reader = Reader(model.program, settings.max_length)
        self._fingerprint: str | None = None

    def _settings_of(self, model: IntegerModel) -> TextSettings | None:
        return model.program.text

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "cpu") -> Self:
        """The model in a `.hccs` file, or in a folder with one: a run, say. `device` may be "cuda"."""
        return cls(IntegerModel.load(find(path), device))

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read, special ones among them."""
        return self.settings.max_length

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model's answers to fixed inputs: equal fingerprints mean equal vectors."""
        if self._fingerprint is None:
            self._fingerprint = self.model.fingerprint()
        return self._fingerprint

    def answers(
        self,
        texts: Sequence[Any],
        *,
        dims: int | None = None,
        batch_size: int | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> Answers:
        """Rows for texts or pairs that are read as they stand: unit vectors in int16, or scores in int64."""
        model = self._model_of(dims)
        found = Answers(
            np.empty((len(texts), model.width), np.int16 if self.settings.kind == EMBEDDINGS else np.int64),
            np.empty(len(texts), np.int64),
            np.empty(len(texts), np.bool_),
        )

        def take(number: int, encoding: Any, answer: NDArray[Any]) -> None:
            found.rows[number] = answer
            found.tokens[number], found.cut[number] = len(encoding.ids), bool(encoding.overflowing)

        self._answers(texts, take, model=model, batch_size=batch_size, threads=threads, progress=progress)
        return found

    def _model_of(self, dims: int | None) -> IntegerModel:
        return self.model

    def _answers(
        self,
        texts: Sequence[Any],
        take: Callable[[int, Any, NDArray[Any]], None],
        *,
        model: IntegerModel | None = None,
        batch_size: int | None = None,
        threads: int | None = None,
        offsets: bool = False,
        progress: bool = False,
    ) -> None:
        """Call `take` with the number, the encoding and the answer of every text, in any order."""
        whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
        if batch_size is not None and (not whole or batch_size < 1):
            raise ParameterError("batch_size, at least 1", repr(batch_size), "Leave it out.")
        if threads is not None:
            require_threads(threads)
        run, typed = model or self.model, self.model.program.embed.type_count > 1
        most = MOST_TOKENS if run.device == "cpu" else MOST_TOKENS_ON_GPU
        done = cut = 0
        with Bar("texts", len(texts)) as bar:
            for start in range(0, len(texts), MOST_TEXTS):
                encodings = self._reader.read(texts[start : start + MOST_TEXTS], offsets=offsets)
                cut += sum(1 for encoding in encodings if encoding.overflowing)
                tokens = [encoding.ids for encoding in encodings]
                lengths = [len(ids) for ids in tokens]
                for batch in batches(lengths, batch_size, most):
                    n = lengths[batch[-1]]
                    ids, types, mask = padded([tokens[i] for i in batch], n), None, None
                    if typed and any(any(encodings[i].type_ids) for i in batch):
                        types = padded([encodings[i].type_ids for i in batch], n)
                    if lengths[batch[0]] < n:
                        mask = np.arange(n) < np.array([[lengths[i]] for i in batch])
                    answers = run(ids, mask, types, threads=threads).scores
                    for i, answer in zip(batch, answers, strict=True):
                        take(start + i, encodings[i], answer)
                    done += len(batch)
                    if progress:
                        bar.update(done)
        self._reader.warn_of_cut(cut, len(texts))

    def __reduce__(self) -> tuple[type[Self], tuple[IntegerModel]]:
        return type(self), (self.model,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"


def batches(lengths: Sequence[int], most: int | None, tokens: int) -> Iterator[list[int]]:
    """Numbers of texts, shortest first, in batches of `most` texts and, with padding, `tokens` at most."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (most is None or end - start < most):
            if (end + 1 - start) * lengths[order[end]] > tokens:
                break
            end += 1
        yield order[start:end]
        start = end


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

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(tokens)
        return text

    def tokens(self, names: Sequence[str]) -> list[int]:
        """The ids of tokens that the file names; those that the tokenizer does not know are refused."""
        found = {name: self._tokenizer.token_to_id(name) for name in names}
        unknown = [name for name, token in found.items() if token is None]
        if unknown:
            raise FileError("stop tokens of the file's tokenizer", f"{unknown}", "Lower the model again.")
        return list(found.values())

    def names(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids, without those that the tokenizer does not have."""
        return [name for token in ids if (name := self._tokenizer.id_to_token(token)) is not None]

    def warn_of_cut(self, cut: int, count: int) -> None:
        """Tell how many of so many texts were cut, the first time that some were."""
        with self._lock:
            if not cut or self._warned:
                return
            self._warned = True
        warnings.warn(
            f"{cut} of {count} texts have more than {self.max_length} tokens: the rest was not read",
            UserWarning,
            stacklevel=5,
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
    if all(len(row) == n for row in rows):
        return np.array(rows, np.int64)
    array = np.zeros((len(rows), n), np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
