"""Long texts with a label that needs all of them: review sentences among premises, and their majority.

A document is drawn from a fixed seed: sentences of SST-2 and premises of MNLI in any order, each once,
as many tokens as fit. About seven in ten of its review sentences, of three at least, have the document's
label: one sentence does not tell. Documents of dev are made of dev sentences and premises alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out, uncontained
from hccs.conversion.data.tasks import Examples
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import load_tokenizer
from hccs.errors import DataError
from hccs_lab.reproduce import sets

LENGTHS = (128, 256, 512, 1024)
"""n of the tables."""

COUNTS = {"train": 1000, "held": 100, "dev": 1000}
"""Documents of each length."""

CALIBRATION_TOKENS = 65536
"""Tokens of the documents that theta is fitted to, at every length."""

MAJORITY = (0.6, 0.8)
"""The share of a document's reviews that have its label."""

FEWEST = 3
"""Reviews of a document."""

ATTEMPTS = 1000

FILLER = 5000
"""Premises that are drawn from."""


@dataclass(frozen=True)
class Pool:
    """Token ids of review sentences by label, and of premises."""

    reviews: tuple[list[list[int]], list[list[int]]]
    premises: list[list[int]]


def prepared(data: Path, work: Path) -> Path:
    """The file of all documents' token ids, written if it is not there."""

    def parts() -> Iterator[tuple[str, TokenisedSet]]:
        tokenizer = load_tokenizer(str(data), data / "vocab.txt")
        for part, documents in _parts(data, tokenizer):
            yield part, as_set(documents, tokenizer)

    files = [data / "vocab.txt"]
    files += [file for task in ("sst2", "mnli") for file in sorted((data / task).glob("*.tsv"))]
    made_of = sets.digest(files, repr((LENGTHS, COUNTS, CALIBRATION_TOKENS)))
    return sets.kept(work, "documents", made_of, parts)


Document = tuple[list[int], int]


def _parts(data: Path, tokenizer: Any) -> Iterator[tuple[str, list[Document]]]:
    """(name, documents) of every part: training and held-back ones of all lengths, dev ones of each."""
    pools = _pools(data, tokenizer)
    draw = random.Random(0)
    for part in ("train", "held"):
        found = [document(pools[part], n, draw) for n in LENGTHS for _ in range(COUNTS[part])]
        yield part, found
    for n in LENGTHS:
        yield f"dev{n}", [document(pools["dev"], n, draw) for _ in range(COUNTS["dev"])]
        # Calibration looks at no labels, but its documents are training ones all the same.
        yield f"calibration{n}", [document(pools["train"], n, draw) for _ in range(CALIBRATION_TOKENS // n)]


def _pools(data: Path, tokenizer: Any) -> dict[str, Pool]:
    reviews, pairs = (tasks.load(tasks.TASKS[name], data / name) for name in ("sst2", "mnli"))
    rest, held = hold_out(reviews.train)
    filler = pairs.train.subset(2 * FILLER).texts
    half = len(filler) // 2
    premises = {"train": filler[:half], "held": filler[half:], "dev": pairs.dev.subset(FILLER).texts}
    parts = {"train": uncontained(rest), "held": uncontained(held), "dev": reviews.dev}
    return {part: _pool(own, premises[part], tokenizer) for part, own in parts.items()}


def _pool(reviews: Examples, premises: Sequence[tuple[str, ...]], tokenizer: Any) -> Pool:
    texts = [text for (text,) in reviews.texts]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    by_label = tuple(
        [i for i, of in zip(ids, reviews.labels, strict=True) if of == label] for label in (0, 1)
    )
    unique = sorted({columns[0] for columns in premises})
    filler = tokenizer(unique, add_special_tokens=False, verbose=False)["input_ids"]
    return Pool((by_label[0], by_label[1]), filler)


def document(pool: Pool, n: int, draw: random.Random) -> Document:
    """Token ids, without the two special ones, and the label of one document."""
    for _ in range(ATTEMPTS):
        label, budget = draw.randrange(2), draw.randint(3 * n // 4, n) - 2
        parts, counts = _drawn(pool, label, budget, draw.uniform(*MAJORITY), draw)
        length = sum(map(len, parts))
        if sum(counts) >= FEWEST and counts[label] >= MAJORITY[0] * sum(counts) and length >= n // 2:
            draw.shuffle(parts)
            return [i for part in parts for i in part], label
    raise DataError(
        f"sentences for documents of n = {n}",
        f"{sum(map(len, pool.reviews))} reviews, {len(pool.premises)} premises",
        "Give all of sst2/ and mnli/.",
    )


def _drawn(
    pool: Pool, label: int, budget: int, share: float, draw: random.Random
) -> tuple[list[list[int]], list[int]]:
    """Sentences within a budget of tokens, of reviews about `share` with the label; and their counts."""
    reviews = [draw.sample(own, min(200, len(own))) for own in pool.reviews]
    premises = draw.sample(pool.premises, min(100, len(pool.premises)))
    chosen: list[list[int]] = []
    counts = [0, 0]
    while True:
        of = None if draw.random() < 0.5 else label if counts[label] <= share * sum(counts) else 1 - label
        left = premises if of is None else reviews[of]
        if not left or len(left[-1]) > budget:
            return chosen, counts
        budget -= len(left[-1])
        chosen.append(left.pop())
        if of is not None:
            counts[of] += 1


def as_set(documents: Sequence[Document], tokenizer: Any) -> TokenisedSet:
    """Documents between the tokenizer's special tokens, padded."""
    rows = [[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id] for ids, _ in documents]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), tokenizer.pad_token_id, dtype=torch.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row, dtype=torch.int32)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).to(torch.int32)
    columns = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": mask}
    return TokenisedSet(columns, lengths, torch.tensor([label for _, label in documents]), 0)
