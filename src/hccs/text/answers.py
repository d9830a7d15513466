"""`Reranker`, `Classifier` and `Tagger`: texts to scores of passages, labels, and spans with labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DtypeError, ModelError, ParameterError
from hccs.program.model import IntegerModel
from hccs.program.program import CLASSIFY, RERANK, TAG
from hccs.text.text_model import TextModel, list_of_texts

OUTSIDE = "O"
"""The label of words in no span."""


@dataclass(frozen=True)
class Ranked:
    """A passage, its number in the list that was ranked, and its score: higher is better."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class Prediction:
    """The best label with its probability, and the probabilities of as many labels as asked, best first.

    A model with one label predicts a value: its score is that value.
    """

    label: str
    score: float
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Tag:
    """A span of a text, from the character `start` to the one before `end`, and its label."""

    text: str
    label: str
    start: int
    end: int


class _Scorer(TextModel):
    def _scores(self, texts: list[Any], batch_size: int | None, threads: int | None) -> NDArray[np.int64]:
        """Integer scores [texts, labels]."""
        scores: NDArray[np.int64] = self.answers(texts, batch_size=batch_size, threads=threads).rows
        return scores


class Reranker(_Scorer):
    """Passages in the order of their relevance to a query, by a classifier of pairs.

    The relevance is the one score of a model with one output; of two, it is the last minus the first.
    """

    kinds = (RERANK, CLASSIFY)

    def __init__(self, model: IntegerModel) -> None:
        super().__init__(model)
        if len(model.labels) > 2:
            raise ModelError(
                "a model with one or two outputs", f"{len(model.labels)} labels", "Use hccs.Classifier."
            )

    def scores(
        self, query: str, passages: Any, *, batch_size: int | None = None, threads: int | None = None
    ) -> NDArray[np.float32]:
        """The relevance of every passage, in the units of the float model's logits."""
        found = self._relevance(query, list_of_texts(passages), batch_size, threads)
        return (found * self.model.program.score_scale).astype(np.float32)

    def rank(
        self,
        query: str,
        passages: Any,
        top_k: int | None = None,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
    ) -> list[Ranked]:
        """The passages, or the `top_k` best, best first; equal scores stay in order."""
        if top_k is not None:
            _require_count(top_k)
        texts, scale = list_of_texts(passages), self.model.program.score_scale
        found = self._relevance(query, texts, batch_size, threads)
        order = np.argsort(-found, kind="stable")[:top_k].tolist()
        return [Ranked(i, float(np.float32(found[i] * scale)), texts[i]) for i in order]

    def _relevance(
        self, query: str, passages: list[str], batch_size: int | None, threads: int | None
    ) -> NDArray[np.int64]:
        if not isinstance(query, str):
            raise DtypeError("a query: str", type(query).__name__, "Rank passages for one query at a time.")
        return relevance(self._scores([(query, passage) for passage in passages], batch_size, threads))


def relevance(scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """The relevance of pairs by their scores [pairs, 1 or 2]."""
    found: NDArray[np.int64] = scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0)
    return found


class Classifier(_Scorer):
    """Labels of texts, or of pairs of texts."""

    kinds = (CLASSIFY,)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the model's outputs."""
        return self.model.labels

    def predict(
        self,
        texts: Any,
        top_k: int | None = 1,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
    ) -> Any:
        """A `Prediction` for every text or pair (a tuple of two), or for one str.

        `scores` holds the `top_k` best labels, or all of them for None.
        """
        if top_k is not None:
            _require_count(top_k)
        single = isinstance(texts, str)
        listed = list_of_texts([texts] if single else texts, pairs=True)
        logits = self._scores(listed, batch_size, threads) * self.model.program.score_scale
        found = [self.prediction(row, top_k) for row in logits]
        return found[0] if single else found

    def prediction(self, logits: NDArray[np.float64], top_k: int | None = None) -> Prediction:
        """The prediction that belongs to a text's logits."""
        if len(logits) == 1:
            value = float(logits[0])
            return Prediction(self.labels[0], value, {self.labels[0]: value})
        powers = np.exp(logits - logits.max())
        shares = powers / powers.sum()
        order = np.argsort(-logits, kind="stable")[:top_k].tolist()
        best = {self.labels[i]: float(shares[i]) for i in order}
        return Prediction(self.labels[order[0]], float(shares[order[0]]), best)


class Tagger(TextModel):
    """Spans of texts with labels: names of people and places, say.

    The first token of a word decides its label. `B-X` begins a span, `I-X` continues one of X or begins one.
    Labels without a prefix are spans of one word each, and `O` is none.
    """

    kinds = (TAG,)

    def tag(self, texts: Any, *, batch_size: int | None = None, threads: int | None = None) -> Any:
        """A list of `Tag` for every text, or for one str."""
        single = isinstance(texts, str)
        listed = list_of_texts([texts] if single else texts)
        found: list[list[Tag]] = [[] for _ in listed]

        def take(number: int, encoding: Any, answer: NDArray[Any]) -> None:
            best = answer[: len(encoding.ids)].argmax(-1)
            found[number] = spans(listed[number], encoding, [self.model.labels[i] for i in best])

        self._answers(listed, take, batch_size=batch_size, threads=threads, offsets=True)
        return found[0] if single else found


def spans(text: str, encoding: Any, labels: list[str]) -> list[Tag]:
    """The spans of a text by the labels of its tokens."""
    found: list[Tag] = []
    open_span = False
    for start, end, label in _words(encoding, labels):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        prefix, _, name = label.partition("-")
        marked = prefix in ("B", "I") and bool(name)
        if label == OUTSIDE or start >= end:
            open_span = False
        elif open_span and prefix == "I" and name == found[-1].label:
            first = found[-1].start
            found[-1] = Tag(text[first:end], name, first, end)
        else:
            found.append(Tag(text[start:end], name if marked else label, start, end))
            open_span = marked
    return found


def _words(encoding: Any, labels: list[str]) -> list[tuple[int, int, str]]:
    """Start, end and label of every word; special tokens belong to none."""
    words: list[tuple[int, int, str]] = []
    previous = None
    tokens = zip(encoding.word_ids, encoding.offsets, labels, strict=True)
    for word, (start, end), label in tokens:
        if word is not None and word == previous:
            words[-1] = (words[-1][0], end, words[-1][2])
        elif word is not None:
            words.append((start, end, label))
        previous = word
    return words


def _require_count(top_k: Any) -> None:
    if not isinstance(top_k, int | np.integer) or isinstance(top_k, bool) or top_k < 1:
        raise ParameterError("top_k, at least 1", repr(top_k), "Leave it out.")
