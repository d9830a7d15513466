"""Tokenised examples in memory, batched without a Python loop over examples."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tasks import Examples
from hccs.errors import DataError

# Beyond this share of cut texts, n is too short for the task rather than a few texts too long.
MOST_CUT = 0.2


class TokenisedSet(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Token ids padded to one width; a batch is cut to its own longest text when it is taken.

    Labels are numbers of classes [examples], values [examples], or classes of tokens [examples, width].
    """

    def __init__(
        self,
        columns: dict[str, torch.Tensor],
        lengths: torch.Tensor,
        labels: torch.Tensor,
        cut: int,
        predictions: torch.Tensor | None = None,
    ) -> None:
        self.columns, self.labels = columns, labels
        self.lengths: list[int] = lengths.tolist()
        self.cut = cut
        self.predictions = predictions

    pixels: Any = None
    """Of images, how pixels become a model's input."""

    def _like(self, *parts: Any) -> TokenisedSet:
        """A set of the same kind."""
        return TokenisedSet(*parts)

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> TokenisedSet:
        """The same examples on another device."""
        moved = {name: column.to(device) for name, column in self.columns.items()}
        predictions = None if self.predictions is None else self.predictions.to(device)
        return self._like(moved, torch.tensor(self.lengths), self.labels.to(device), self.cut, predictions)

    def with_predictions(self, predictions: torch.Tensor) -> TokenisedSet:
        """The same examples, each with a teacher's logits to follow, as `predictions` in every batch."""
        predictions = predictions.to(self.labels.device)
        return self._like(self.columns, torch.tensor(self.lengths), self.labels, self.cut, predictions)

    def labelled_by(self, predictions: torch.Tensor) -> TokenisedSet:
        """The same examples, labelled as a model answers: by its largest logits, or its values."""
        answers = predictions[..., 0] if predictions.shape[-1] == 1 else predictions.argmax(-1)
        labels = answers.to(self.labels.device)
        if labels.ndim == 2:
            labels = torch.where(self.labels == IGNORED, IGNORED, labels[:, : self.labels.shape[1]])
        lengths = torch.tensor(self.lengths)
        return TokenisedSet(self.columns, lengths, labels, self.cut, self.predictions)

    def at(self, indices: Sequence[int]) -> TokenisedSet:
        """The examples at these places."""
        chosen = torch.tensor(indices, device=self.labels.device)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        lengths = torch.tensor([self.lengths[i] for i in indices])
        predictions = None if self.predictions is None else self.predictions[chosen]
        return self._like(columns, lengths, self.labels[chosen], 0, predictions)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A whole batch."""
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
        """Some examples as an integer model takes them: ids, mask and, where there are any, types."""
        batch = {name: column.cpu().numpy() for name, column in self.__getitems__(indices).items()}
        return batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids")

    @property
    def width(self) -> int:
        """Of the longest text."""
        return self.columns["input_ids"].shape[1]

    def by_length(self, size: int) -> list[list[int]]:
        """The indices of all examples in batches of similar length."""
        order = sorted(range(len(self)), key=self.lengths.__getitem__)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def batches(self, size: int) -> Iterator[dict[str, torch.Tensor]]:
        """All examples in batches of similar length."""
        for indices in self.by_length(size):
            yield self.__getitems__(indices)


def _cut(values: torch.Tensor, per_token: int, width: int) -> torch.Tensor:
    """What has one row per token, cut to a batch's width; `per_token` is how many axes that takes."""
    return values[:, :width].contiguous() if values.ndim == per_token else values


def as_batch(batch: Any) -> Any:
    """Collator for sets that already return batches."""
    return batch


def tokenise(examples: Examples, tokenizer: Any, n: int) -> TokenisedSet:
    """Examples as token ids of at most `n`; longer texts are cut, with a warning that counts them.

    Of images, where an image processor takes the tokenizer's place, their pixels.
    """
    if hasattr(tokenizer, "image_mean"):
        from hccs.conversion.data.images import prepared  # a kind of TokenisedSet itself

        return prepared(examples, tokenizer)
    if examples.tokenised:
        return _as_they_stand(examples, tokenizer, n)
    columns: list[Any] = [[text[i] for text in examples.texts] for i in range(len(examples.texts[0]))]
    of_words = isinstance(examples.labels[0], list)
    if of_words:
        columns = [[text.split() for text in columns[0]]]
    limit = min(n, getattr(tokenizer, "model_max_length", n))
    how = {"add_special_tokens": True, "verbose": False, "is_split_into_words": of_words}
    encoded = tokenizer(*columns, truncation=False, **how)
    full = [len(ids) for ids in encoded["input_ids"]]
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
        encoded = tokenizer(*columns, truncation=True, max_length=limit, **how)
    labels = _of_tokens(encoded, examples.labels) if of_words else torch.tensor(examples.labels)
    return _padded(encoded, tokenizer, labels, cut)


def _as_they_stand(examples: Examples, tokenizer: Any, n: int) -> TokenisedSet:
    """Token ids that somebody else has made, and their types."""
    columns = [
        [[int(word) for word in text[i].split()] for text in examples.texts]
        for i in range(len(examples.texts[0]))
    ]
    longest = max(map(len, columns[0]))
    if longest > n:
        raise DataError(f"token ids of at most n = {n}", f"a row of {longest}", "Raise n.")
    encoded = dict(zip(("input_ids", "token_type_ids"), columns, strict=False))
    encoded["attention_mask"] = [[1] * len(ids) for ids in columns[0]]
    return _padded(encoded, tokenizer, torch.tensor(examples.labels), 0)


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
