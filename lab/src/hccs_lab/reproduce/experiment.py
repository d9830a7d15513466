"""One experiment: its float model and data, and how whatever is made from it is measured."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

import hccs.nn
from hccs._files.atomic import replacing_folder
from hccs.calibration import Calibration, HeadStatistics, fidelity, search
from hccs.conversion import scores
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import ACCURACY
from hccs.conversion.models import best_device, load_classifier, predictions
from hccs.conversion.training import Outcome, Recipe, taught, train
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs_lab.compare.source import LogitSample, head_size, sample_model
from hccs_lab.compare.steps import fitted
from hccs_lab.reproduce import sets
from hccs_lab.reproduce.plan import (
    CALIBRATION_SENTENCES,
    CORRECTION_SENTENCES,
    ENCODERS,
    SURROGATE_ROWS,
    UNLABELLED_SENTENCES,
    Experiment,
    Plan,
)

BATCH = 512
"""Examples at a time when nothing is trained."""

WITHOUT_DIVISION = Mode.U8_LIN
"""The mode for hardware that does not divide."""


FORMS: dict[str, dict[str, Any]] = {
    "one line": {},
    "one line, layer": {"granularity": "layer"},
    "one line, global": {"granularity": "global"},
    "one line, wide": {"sum_bits": 24},
    "two lines": {"lines": 2},
    "two lines, uint8": {"lines": 2, "scores": "uint8"},
}
"""Forms of theta, and the options of their search."""


def reached(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    own = scores.measured(ACCURACY, logits, labels)
    return {"accuracy": own.value, "error": own.error}


def points(logits: torch.Tensor, base: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    against = scores.difference(ACCURACY, logits, base, labels)
    return {"points": 100 * against.value, "points_error": 100 * against.error}


class ExperimentRun:
    """The work of one experiment, which loads and computes what it needs only when a stage asks for it."""

    def __init__(
        self, plan: Plan, experiment: Experiment, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.say = say
        self.plan, self.experiment, self.encoder = plan, experiment, ENCODERS[experiment.model]
        self.recipe = self.encoder.recipes[experiment.task]
        self.task = tasks.TASKS[experiment.task]
        self._found: dict[str, tuple[Calibration, float]] = {}
        self._refined: dict[tuple[str, Mode], ParamTable] = {}
        self._corrected: dict[str, Any] = {}
        self._fitted: dict[str, dict[str, Any]] = {}

    @cached_property
    def sets(self) -> dict[str, TokenisedSet]:
        where = sets.prepared(self.experiment.task, self.plan.data, self.plan.work)
        return sets.opened(where, best_device())

    def _drawn(self, part: str, count: int) -> TokenisedSet:
        """Some examples of a part, drawn by the experiment's seed."""
        generator = torch.Generator().manual_seed(self.experiment.seed)
        order = torch.randperm(len(self.sets[part]), generator=generator)
        return self.sets[part].at(order[:count].tolist())

    @cached_property
    def calibration(self) -> TokenisedSet:
        return self._drawn("train", CALIBRATION_SENTENCES)

    @cached_property
    def batches(self) -> list[dict[str, torch.Tensor]]:
        return list(self.calibration.batches(64))

    @cached_property
    def correction(self) -> list[dict[str, torch.Tensor]]:
        """The calibration sentences and more, for correcting weights."""
        return list(self._drawn("train", CORRECTION_SENTENCES).batches(64))

    @cached_property
    def unlabelled(self) -> TokenisedSet:
        """Training sentences with the float model's predictions, and its answers as their labels."""
        drawn = taught(self._drawn("train", UNLABELLED_SENTENCES), self.model)
        assert drawn.predictions is not None
        return drawn.labelled_by(drawn.predictions)

    @cached_property
    def judged(self) -> TokenisedSet:
        """Held-back sentences whose labels are not looked at: they tell if a step without labels is kept."""
        return self._drawn("held", CALIBRATION_SENTENCES)

    @cached_property
    def taught(self) -> TokenisedSet:
        return taught(self.sets["train"], self.model)

    def fine_tuned(self) -> dict[str, Any]:
        """Fine-tune the encoder and keep it: stages that are added later start from it, too."""
        torch.manual_seed(self.experiment.seed)
        labels = self.task.labels
        assert labels is not None
        folder, vocabulary = self.plan.data / self.encoder.folder, self.plan.data / "vocab.txt"
        model = load_classifier(str(folder), labels, vocabulary, new_head=True).model.to(best_device())
        recipe = replace(self.recipe.fine_tuning, seed=self.experiment.seed)
        data, held = self.sets["train"], self.sets["held"]
        outcome = self.train(model, data, held, recipe, "float")
        with replacing_folder(self.plan.model(self.experiment)) as folder:
            model.save_pretrained(folder)
        return {
            **reached(predictions(model, self.sets["dev"], BATCH), self.sets["dev"].labels),
            "held": outcome.score,
            "history": outcome.history,
            "examples": {part: len(own) for part, own in self.sets.items()},
        }

    @property
    def kept(self) -> bool:
        return (self.plan.model(self.experiment) / "config.json").exists()

    @cached_property
    def model(self) -> Any:
        """The fine-tuned float model; stages work on copies of it."""
        labels = self.task.labels
        assert labels is not None
        folder = str(self.plan.model(self.experiment))
        return load_classifier(folder, labels, self.plan.data / "vocab.txt").model.to(best_device()).eval()

    def copy(self) -> Any:
        return copy.deepcopy(self.model)

    @cached_property
    def answers(self) -> torch.Tensor:
        return predictions(self.model, self.sets["dev"], BATCH)

    @cached_property
    def wanted(self) -> torch.Tensor:
        return predictions(self.model, self.judged, BATCH)

    def measured(self, model: Any) -> dict[str, float]:
        """Accuracy on dev and the difference from the float model in points, with standard errors."""
        dev = self.sets["dev"]
        logits = predictions(model, dev, BATCH)
        return {**reached(logits, dev.labels), **points(logits, self.answers, dev.labels)}

    def in_modes(self, model: Any, table: ParamTable, modes: Iterable[Mode] = Mode) -> dict[str, Any]:
        """`measured` with a table attached, in each mode; leaves the table's own mode attached."""
        found = {mode.value: self.measured(hccs.nn.attach(model, table, mode)) for mode in modes}
        hccs.nn.attach(model, table)
        return found

    def judge(self, model: Any) -> torch.Tensor:
        """A model's answers to the sentences that tell if a step is kept."""
        return predictions(model, self.judged, BATCH)

    def kept_step(self, now: torch.Tensor, before: torch.Tensor) -> dict[str, Any]:
        """Whether answers are not further from the float model's than before, beyond noise."""
        nearer = scores.closer(now, before, self.wanted)
        return {"nearer": [nearer.value, nearer.error], "kept": not nearer.loses}

    @cached_property
    def statistics(self) -> HeadStatistics:
        """Statistics of the float model's logits on the calibration sentences."""
        return hccs.nn.collect(self.model, self.batches, n=self.task.n)

    @cached_property
    def statistics_judged(self) -> HeadStatistics:
        """Statistics of the float model's logits on held-back sentences, at the same scales."""
        batches = list(self.judged.batches(64))
        return hccs.nn.collect(self.model, batches, n=self.task.n, scale=self.statistics.scale)

    @cached_property
    def rows(self) -> tuple[LogitSample, LogitSample]:
        """Some rows of every head: of the calibration sentences; of held-back ones, at the same scales."""
        draw = partial(
            sample_model, self.model, n=self.task.n, rows=SURROGATE_ROWS, seed=self.experiment.seed
        )
        own = draw(self.batches)
        return own, draw(list(self.judged.batches(64)), scale=own.scale)

    def fitted(self, method: str) -> dict[str, Any]:
        """The parameters of a softmax replacement, by its own calibration on the rows; found once."""
        if method not in self._fitted:
            self._fitted[method] = fitted(method, self.rows[0], head_size(self.model))
        return self._fitted[method]

    def calibrated(self, form: str) -> tuple[Calibration, float]:
        """The calibration of a form, and the seconds of its search; made once."""
        if form not in self._found:
            stats, began = self.statistics, time.perf_counter()
            found = search(stats, self.task.n, threads=1, **FORMS[form])
            self._found[form] = found, time.perf_counter() - began
        return self._found[form]

    def divergence(self, table: ParamTable) -> list[float]:
        return [float(kl) for kl in fidelity(self.statistics_judged, table)[..., 0].reshape(-1)]

    def refined(self, form: str, mode: Mode = Mode.I16_DIV) -> ParamTable:
        """A form fitted to the model's answers, as `hccs convert` does; made once."""
        if (form, mode) not in self._refined:
            start = replace(self.calibrated(form)[0].table, mode=mode)
            self._refined[form, mode] = hccs.nn.refine(self.copy(), start, self.batches)
        return self._refined[form, mode]

    def corrected(self, form: str) -> Any:
        """A copy of the float model with a form attached and its weights corrected by ridge regression."""
        if form not in self._corrected:
            model = hccs.nn.attach(self.copy(), self.calibrated(form)[0].table)
            hccs.nn.reconstruct(model, self.correction, teacher=self.model)
            self._corrected[form] = model
        return self._corrected[form]

    def checkpoint(self, name: str) -> Path:
        """Where a training keeps its state, from which it goes on if it was killed."""
        folder = self.plan.work / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.experiment.name}-{name.replace('/', '-')}.pt"

    def train(self, model: Any, data: TokenisedSet, held: TokenisedSet, recipe: Recipe, name: str) -> Outcome:
        """Train a model without HCCS; an interrupted training goes on."""
        return train(model, data, held, recipe, self.checkpoint(name), say=self.say)
