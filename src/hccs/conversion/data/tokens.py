"""Tokenised examples in memory, batched without a Python loop over examples."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tasks import Examples
from hccs.errors import DataError

MOST_CUT = 0.2
"""A larger share of cut texts is refused: n is too short for the task."""

COVERED, STEP = 0.99, 16
"""A default n is as long as this share of texts, rounded up to a multiple of the step."""


class TokenisedSet(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Token ids padded to one width; a batch is cut to its own longest text when it is taken.

    Labels are numbers of classes [examples], values [examples], or classes of tokens [examples, width].
    `cut` counts the texts that were cut; `pixels` tells how the pixels of images become a model's input.
    """

    pixels: Any = None

    def __init__(
        self, columns: dict[str, torch.Tensor], lengths: torch.Tensor, labels: torch.Tensor, cut: int
    ) -> None:
        self.columns, self.labels, self.cut = columns, labels, cut
        self.lengths: list[int] = lengths.tolist()
        self.predictions: torch.Tensor | None = None

    def _replace(self, **changes: Any) -> TokenisedSet:
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> TokenisedSet:
        moved = {name: column.to(device) for name, column in self.columns.items()}
        predictions = None if self.predictions is None else self.predictions.to(device)
        return self._replace(columns=moved, labels=self.labels.to(device), predictions=predictions)

    def with_predictions(self, predictions: torch.Tensor) -> TokenisedSet:
        """The same examples, each with a teacher's logits to follow, as `predictions` in every batch."""
        return self._replace(predictions=predictions.to(self.labels.device))

    def labelled_by(self, predictions: torch.Tensor) -> TokenisedSet:
        """The same examples, labelled as a model answers: by its largest logits, or its values."""
        answers = predictions[..., 0] if predictions.shape[-1] == 1 else predictions.argmax(-1)
        labels = answers.to(self.labels.device)
        if labels.ndim == 2:
            labels = torch.where(self.labels == IGNORED, IGNORED, labels[:, : self.labels.shape[1]])
        return self._replace(labels=labels)

    def at(self, indices: Sequence[int]) -> TokenisedSet:
        chosen = torch.tensor(indices, device=self.labels.device)
        return self._replace(
            columns={name: column[chosen] for name, column in self.columns.items()},
            lengths=[self.lengths[i] for i in indices],
            labels=self.labels[chosen],
            cut=0,
            predictions=None if self.predictions is None else self.predictions[chosen],
        )

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A batch, which torch's loaders ask for by this name."""
        width = max(self.lengths[i] for i in indices)
        return self.batch(torch.tensor(indices, device=self.labels.device), width)

    def batch(self, chosen: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
        """The examples at places that lie on the set's own device, cut to the longest's width."""
        batch = {name: column[chosen, :width].long() for name, column in self.columns.items()}
        batch["labels"] = _cut(self.labels[chosen], 2, width)
        if self.predictions is not None:
            batch["predictions"] = _cut(self.predictions[chosen], 3, width)
        return batch

    def integers(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """A batch as an integer model takes it: ids, mask and, where there are any, types."""
        batch = {name: column.cpu().numpy() for name, column in self.__getitems__(indices).items()}
        return batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids")

    @property
    def width(self) -> int:
        return self.columns["input_ids"].shape[1]

    def by_length(self, size: int) -> list[list[int]]:
        """The indices of all examples in batches of similar length."""
        order = sorted(range(len(self)), key=self.lengths.__getitem__)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def batches(self, size: int) -> Iterator[dict[str, torch.Tensor]]:
        return map(self.__getitems__, self.by_length(size))


def _cut(values: torch.Tensor, per_token: int, width: int) -> torch.Tensor:
    """Values that have one row per token, cut to a batch's width; `per_token` is how many axes those have."""
    return values[:, :width].contiguous() if values.ndim == per_token else values


def tokenise(examples: Examples, tokenizer: Any, n: int) -> TokenisedSet:
    """Examples as token ids of at most `n`; longer texts are cut, with a warning that counts them.

    An image processor instead of a tokenizer makes images into pixels.
    """
    if hasattr(tokenizer, "image_mean"):
        from hccs.conversion.data.images import prepared  # a kind of TokenisedSet itself

        return prepared(examples, tokenizer)
    encoded = _encoded(examples, tokenizer, truncation=False)
    full = [len(ids) for ids in encoded["input_ids"]]
    limit = min(n, getattr(tokenizer, "model_max_length", n))
    cut = sum(length > limit for length in full)
    if cut > MOST_CUT * len(full):
        raise DataError(
            f"texts of at most n = {limit} tokens",
            f"{cut} of {len(full)} longer, the longest {max(full)}",
            "Raise n, or shorten the texts.",
        )
    if cut:
        warnings.warn(
            f"{cut} of {len(full)} texts are longer than n = {limit} tokens and were cut", stacklevel=2
        )
        encoded = _encoded(examples, tokenizer, truncation=True, max_length=limit)
    of_words = isinstance(examples.labels[0], list)
    labels = _of_tokens(encoded, examples.labels) if of_words else torch.tensor(examples.labels)
    return _padded(encoded, tokenizer, labels, cut)


@dataclass(frozen=True)
class ChosenLength:
    """The longest sequence in tokens, and a sentence that says why, and how many texts it cuts."""

    n: int
    sentence: str


def choose_length(examples: Examples, tokenizer: Any, limit: int | None = None) -> ChosenLength:
    """An n that covers 99 texts in 100, a multiple of 16, and at most the model's limit."""
    lengths = sorted(len(ids) for ids in _encoded(examples, tokenizer, truncation=False)["input_ids"])
    count, longest = len(lengths), lengths[-1]
    covered = lengths[math.ceil(COVERED * count) - 1]
    wanted = -(-covered // STEP) * STEP
    n = min(wanted, limit or wanted, getattr(tokenizer, "model_max_length", wanted))
    cut = sum(length > n for length in lengths)
    why = "the model's limit" if n < wanted else f"{100 * COVERED:.0f} % of {count} texts fit"
    what = f"{cut} longer ones, up to {longest} tokens, are cut" if cut else "none is cut"
    return ChosenLength(n, f"n = {n} tokens, {why}; {what}")


def _encoded(examples: Examples, tokenizer: Any, **options: Any) -> Any:
    columns: list[Any] = [list(column) for column in zip(*examples.texts, strict=True)]
    of_words = isinstance(examples.labels[0], list)
    if of_words:
        columns = [[text.split() for text in columns[0]]]
    return tokenizer(
        *columns, add_special_tokens=True, verbose=False, is_split_into_words=of_words, **options
    )


def _of_tokens(encoded: Any, labels: Sequence[Any]) -> torch.Tensor:
    """Labels of words as labels of tokens: the first token of each word has its label, the others none."""
    if not getattr(encoded, "is_fast", False):
        raise DataError(
            "a tokenizer that tells which word a token is of", "a slow one", "Use the model's fast tokenizer."
        )
    width = max(len(ids) for ids in encoded["input_ids"])
    found = torch.full((len(labels), width), IGNORED)
    for row, given in enumerate(labels):
        before = None
        for column, word in enumerate(encoded.word_ids(row)):
            if word is not None and word != before:
                found[row, column] = given[word]
            before = word
    return found


def _padded(encoded: Any, tokenizer: Any, labels: torch.Tensor, cut: int) -> TokenisedSet:
    lengths = torch.tensor([len(ids) for ids in encoded["input_ids"]])
    width = int(lengths.max())
    if tokenizer.pad_token_id is None:
        raise DataError("a tokenizer with a padding token", "none", "Set its pad_token, and the model's.")
    fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": 0, "attention_mask": 0}
    real = torch.arange(width) < lengths[:, None]
    columns = {}
    for name, fill in fills.items():
        if name in encoded:
            columns[name] = torch.full((len(lengths), width), fill, dtype=torch.int32)
            columns[name][real] = torch.tensor(
                list(itertools.chain.from_iterable(encoded[name])), dtype=torch.int32
            )
    return TokenisedSet(columns, lengths, labels, cut)
