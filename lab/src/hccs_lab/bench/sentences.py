"""What is timed: one real sentence, and a batch of them with the lengths that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hccs.conversion.data.tokens import TokenisedSet
from hccs_lab.bench.opening import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Workload:
    """Sentences that are answered together: in one padded batch, or in several of similar length."""

    name: str
    batches: tuple[Batch, ...]

    @property
    def sentences(self) -> int:
        """How many."""
        return sum(len(batch["input_ids"]) for batch in self.batches)

    @property
    def tokens(self) -> int:
        """Those that the sentences have."""
        return sum(int(batch["attention_mask"].sum()) for batch in self.batches)

    @property
    def padded(self) -> int:
        """Those that a runtime computes which knows no lengths."""
        return sum(batch["input_ids"].size for batch in self.batches)


def workloads(data: TokenisedSet, count: int, group: int | None) -> list[Workload]:
    """One sentence of median length, and the first `count` of the data.

    Without a `group` these are one batch in the order in which they came, padded to the longest, as
    `tokenizer(texts, padding=True)` makes it. With one they are sorted by length and cut into batches of so
    many: what a careful user of a runtime that computes padding would do.
    """
    chosen = range(min(count, len(data)))
    by_length = sorted(chosen, key=data.lengths.__getitem__)
    one = Workload("1 sentence", (_batch(data, [by_length[len(by_length) // 2]]),))
    if group is None:
        parts: list[Sequence[int]] = [chosen]
    else:
        parts = [by_length[start : start + group] for start in range(0, len(by_length), group)]
    many = Workload(f"{len(chosen)} sentences", tuple(_batch(data, part) for part in parts))
    return [one, many]


def calibration_batches(data: TokenisedSet, count: int) -> list[Batch]:
    """Single sentences, for runtimes that fix the ranges of activations ahead."""
    return [_batch(data, [i]) for i in range(min(count, len(data)))]


def _batch(data: TokenisedSet, indices: Sequence[int]) -> Batch:
    columns = data.__getitems__(list(indices))
    return {name: np.ascontiguousarray(columns[name].cpu().numpy()) for name in data.columns}
