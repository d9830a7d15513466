"""What all models of texts share: a file with its tokenizer, and batches of sequences of like lengths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hccs._progress import Bar
from hccs.errors import ModelError, ParameterError
from hccs.ops.arguments import require_threads
from hccs.program.files import find
from hccs.program.model import IntegerModel
from hccs.program.text_settings import CLASSIFY, EMBEDDINGS, RERANK, TAG, TextSettings
from hccs.text.reading import Reader, padded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

MOST_TOKENS = 8192
"""Tokens of a batch: enough for every thread, and memory stays bounded."""

MOST_TEXTS = 4096
"""Texts that are read before they are sorted into batches."""

CLASSES = {EMBEDDINGS: "Encoder", RERANK: "Reranker", CLASSIFY: "Classifier", TAG: "Tagger"}


class TextModel:
    """A model of texts over an `IntegerModel`; many threads of Python may share one."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, model: IntegerModel) -> None:
        settings = model.program.text
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

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model in a `.hccs` file, or in a folder with one: a run, say."""
        return cls(IntegerModel.load(find(path)))

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
        if batch_size is not None and (not isinstance(batch_size, int | np.integer) or batch_size < 1):
            raise ParameterError("batch_size, at least 1", repr(batch_size), "Leave it out.")
        if threads is not None:
            require_threads(threads)
        run, typed = model or self.model, self.model.program.embed.type_count > 1
        done = cut = 0
        with Bar("texts", len(texts)) as bar:
            for start in range(0, len(texts), MOST_TEXTS):
                encodings = self._reader.read(texts[start : start + MOST_TEXTS], offsets=offsets)
                cut += sum(1 for encoding in encodings if encoding.overflowing)
                lengths = np.array([len(encoding.ids) for encoding in encodings])
                for batch in batches(lengths, batch_size):
                    n = int(lengths[batch[-1]])
                    ids = padded([encodings[i].ids for i in batch], n)
                    types = padded([encodings[i].type_ids for i in batch], n) if typed else None
                    mask = np.arange(n) < lengths[batch][:, None]
                    answers = run(ids, mask, types, threads=threads).scores
                    for i, answer in zip(batch, answers, strict=True):
                        take(start + int(i), encodings[i], answer)
                    done += len(batch)
                    if progress:
                        bar.update(done)
        self._reader.warn_of_cut(cut, len(texts))

    def __reduce__(self) -> tuple[type[Self], tuple[IntegerModel]]:
        return type(self), (self.model,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"


def batches(lengths: NDArray[np.int64], most: int | None) -> Iterator[NDArray[np.int64]]:
    """Numbers of texts, shortest first, in batches of at most so many and of `MOST_TOKENS` with padding."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (most is None or end - start < most):
            if (end + 1 - start) * lengths[order[end]] > MOST_TOKENS:
                break
            end += 1
        yield order[start:end]
        start = end
