"""Steps that follow the float model without labels: each is kept unless held-back sentences say it loses."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

import hccs.nn
from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import predictions
from hccs.conversion.scores import closer
from hccs.nn.training import divergence
from hccs.numbers.table import ParamTable

MOST_JUDGES = 1024
"""Held-back sentences on which a step is judged."""

LEAST_SENTENCES = 8
"""Of every so many sentences reconstruction holds one back."""


class Judge:
    """Held-back sentences and the float model's answers to them: which of two models is nearer to those."""

    def __init__(self, teacher: Any, held: TokenisedSet) -> None:
        every = -(-len(held) // MOST_JUDGES)
        self.sentences = held.at(range(0, len(held), every))
        self.wanted = predictions(teacher, self.sentences)
        labels = self.sentences.labels
        self.counted = labels != IGNORED if labels.ndim == 2 else None

    def answers(self, model: Any) -> torch.Tensor:
        """A model's answers to the sentences."""
        return predictions(model, self.sentences)

    def verdict(self, before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
        """KL to the float model without and with a step, how much nearer that is, and if the step is kept."""
        nearer = closer(after, before, self.wanted, self.counted)
        kl = [float(divergence(part, self.wanted, self.counted)) for part in (before, after)]
        return {
            "kept": not nearer.loses,
            "kl": kl,
            "nearer": [nearer.value, nearer.error],
            "sentences": len(self.sentences),
        }


def mend(model: Any, teacher: Any, batches: Sequence[dict[str, Any]], judge: Judge) -> dict[str, Any]:
    """Mend the weights of a model in place, in closed form; those of before are put back where it loses.

    Of too few sentences none can be held back to choose by: then nothing is mended.
    """
    before, weights = judge.answers(model), copy.deepcopy(model.state_dict())
    if sum(len(next(iter(batch.values()))) for batch in batches) < LEAST_SENTENCES:
        return {**judge.verdict(before, before), "matrices": []}
    matrices = hccs.nn.reconstruct(model, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(model))
    if not verdict["kept"]:
        model.load_state_dict(weights)
    return {**verdict, "matrices": [asdict(matrix) for matrix in matrices]}


def refine(
    model: Any, teacher: Any, table: ParamTable, batches: Sequence[dict[str, Any]], judge: Judge
) -> dict[str, Any]:
    """Fit theta to the float model's answers, and attach it; the table is attached again where it loses.

    Without a teacher the float model is the model itself with its own softmax.
    """
    before = judge.answers(hccs.nn.attach(model, table))
    found = hccs.nn.refine(model, table, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(hccs.nn.attach(model, found)))
    if not verdict["kept"]:
        hccs.nn.attach(model, table)
    return verdict
