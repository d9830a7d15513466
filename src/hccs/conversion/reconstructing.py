"""Steps that follow the float model without labels; held-back sentences decide whether each is kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

import hccs.nn
from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import predictions
from hccs.conversion.results import CorrectedMatrix, Verdict
from hccs.conversion.scores import closer
from hccs.nn.training import divergence
from hccs.numbers.table import ParamTable

MOST_JUDGES = 1024
"""Held-back sentences on which a step is judged."""

LEAST_SENTENCES = 8
"""Reconstruction holds back one sentence in so many."""


class Judge:
    """Held-back sentences and the float model's answers to them: which of two models is nearer to those."""

    def __init__(self, teacher: Any, held_back: TokenisedSet) -> None:
        every = -(-len(held_back) // MOST_JUDGES)
        self.sentences = held_back.at(range(0, len(held_back), every))
        self.wanted = predictions(teacher, self.sentences)
        labels = self.sentences.labels
        self.counted = labels != IGNORED if labels.ndim == 2 else None

    def answers(self, model: Any) -> torch.Tensor:
        """A model's answers to the sentences."""
        return predictions(model, self.sentences)

    def verdict(self, before: torch.Tensor, after: torch.Tensor) -> Verdict:
        """Whether a model's answers after a step are kept, given those before it."""
        nearer = closer(after, before, self.wanted, self.counted)
        first, second = (float(divergence(part, self.wanted, self.counted)) for part in (before, after))
        return Verdict(not nearer.loses, (first, second), (nearer.value, nearer.error), len(self.sentences))


def correct_weights(model: Any, teacher: Any, batches: Sequence[dict[str, Any]], judge: Judge) -> Verdict:
    """Correct weights in place by closed-form ridge regression; a step that loses is undone.

    Fewer than LEAST_SENTENCES sentences leave none to hold back: then nothing is corrected.
    """
    before, weights = judge.answers(model), copy.deepcopy(model.state_dict())
    if sum(len(next(iter(batch.values()))) for batch in batches) < LEAST_SENTENCES:
        return judge.verdict(before, before)
    matrices = hccs.nn.reconstruct(model, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(model))
    if not verdict.kept:
        model.load_state_dict(weights)
    return replace(verdict, matrices=tuple(CorrectedMatrix(**asdict(matrix)) for matrix in matrices))


def refine(
    model: Any, teacher: Any, table: ParamTable, batches: Sequence[dict[str, Any]], judge: Judge
) -> Verdict:
    """Fit theta to the float model's answers, and attach it; where that loses, the table stays attached.

    Without a teacher the float model is the model itself with its own softmax.
    """
    before = judge.answers(hccs.nn.attach(model, table))
    found = hccs.nn.refine(model, table, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(hccs.nn.attach(model, found)))
    if not verdict.kept:
        hccs.nn.attach(model, table)
    return verdict
