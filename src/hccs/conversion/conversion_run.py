"""What the stages of one conversion share: its data, the models that stages have saved, and dev scores."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import hccs.nn
from hccs._files.atomic import replacing_folder
from hccs.calibration.two_lines import Fitting, fitting_for
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.fingerprints import of_examples, of_weights
from hccs.conversion.metrics import Function, agreement_for, metric_for
from hccs.conversion.models import (
    Loaded,
    best_device,
    load_classifier,
    longest_row,
    no_labels,
    predictions,
    require_fit,
)
from hccs.conversion.reconstructing import Judge
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.processes import state
from hccs.conversion.scores import difference, measured
from hccs.conversion.settings import ConversionSettings
from hccs.errors import HccsError
from hccs.numbers.table import ParamTable


class ConversionRun:
    """Data and models of one run; models are loaded when a stage that is not done yet asks for them."""

    def __init__(
        self,
        settings: ConversionSettings,
        out: str | Path,
        say: Callable[[str], None] = print,
        *,
        metric: Function | None = None,
        marker: str = "settings.json",
    ) -> None:
        self.settings, self.say = settings, say
        self.metric = metric_for(settings.task.problem, metric or settings.metric)
        # Read before anything is written: a run on bad data leaves nothing behind.
        data = tasks.load(settings.task, settings.data)
        torch.manual_seed(settings.seed)
        self.start = load_classifier(
            settings.model,
            data.labels,
            settings.vocabulary,
            order=settings.labels,
            by_name=settings.task.names_numbers,
            new_head=settings.new_head,
            problem=settings.task.problem,
        )
        self.n = longest_row(self.start.model, settings.task)
        if settings.task.unlabelled and not self.start.has_head:
            raise no_labels(settings.model)
        self.data = data.numbered_as(self.start.labels)
        if not self.data.dev.labelled and not (metric or settings.metric):
            self.metric = agreement_for(settings.task.problem)
        rest, held = hold_out(self.data.train, settings.held_back)
        self.sets = {
            "train": self._tokenised(rest),
            "held": self._tokenised(held),
            "dev": self._tokenised(self.data.dev),
            "calibration": self._tokenised(rest.subset(settings.sentences, settings.seed)),
        }
        require_fit(self.start.model, self.sets.values())
        self.fingerprints = {
            "weights": of_weights(self.start.model),
            "examples": of_examples(self.sets[name] for name in ("train", "held", "dev")),
        }
        self.folder = RunFolder(out, asdict(settings), marker)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self.start.tokenizer, self.n).to(best_device())

    @property
    def fitting(self) -> Fitting:
        """How theta is fitted to rows as long as the model's."""
        return fitting_for(self.n, self.settings.form.lines, self.settings.form.scores)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    def results_of(self, stage: str) -> dict[str, Any]:
        """What an earlier stage found; nothing where the run has no such stage."""
        found: dict[str, Any] = self.folder.results["stages"].get(stage, {})
        return found

    def ask_the_float_model(self) -> None:
        """Label what nobody has labelled by the float model's answers, which training then follows."""
        model = hccs.nn.detach(self.start.model.to(best_device()))
        unlabelled = [] if self.settings.retraining is None else ["train", "held"]
        for name in [*unlabelled, *([] if self.data.dev.labelled else ["dev"])]:
            answers = predictions(model, self.sets[name], progress="the float model's answers")
            labelled = self.sets[name].labelled_by(answers)
            self.sets[name] = labelled.with_predictions(answers) if name == "train" else labelled

    def keep(self, model: Any, name: str) -> None:
        """Write a model's folder, which appears whole or not at all."""
        if not state().is_main_process:
            return
        with replacing_folder(self.path / name) as folder:
            model.save_pretrained(folder)
            self.start.tokenizer.save_pretrained(folder)

    def load(self, name: str) -> Any:
        """A model that an earlier stage has saved."""
        torch.manual_seed(self.settings.seed)
        found: Loaded = load_classifier(
            str(self.path / name), self.data.labels, problem=self.settings.task.problem
        )
        return found.model.to(best_device())

    @cached_property
    def model(self) -> Any:
        """The float model, which later stages convert in place."""
        return self.load("float").eval()

    @cached_property
    def table(self) -> ParamTable:
        """The calibrated table."""
        return ParamTable.load(self.path / "table.hccs.safetensors")

    def calibrated(self) -> tuple[Any, ParamTable]:
        """The model that no labels have changed, and its table."""
        if not self.settings.reconstructs:
            return self.model, self.table
        model = hccs.nn.restore(self.load("reconstructed")).eval()
        return model, hccs.nn.current_table(model)

    def delivered(self) -> Any:
        """The converted model as it was saved, on float q, k and v."""
        return hccs.nn.restore(self.load("model"), backend="float").eval()

    def calibration_share(self) -> list[dict[str, Any]]:
        """This process's batches of the calibration sentences."""
        return self._share(self.sets["calibration"])

    @cached_property
    def mending_share(self) -> list[dict[str, Any]]:
        """This process's batches of the sentences on which weights are mended."""
        chosen = random.Random(self.settings.seed).sample(
            range(len(self.sets["train"])),
            min(self.settings.reconstruction_sentences, len(self.sets["train"])),
        )
        return self._share(self.sets["train"].at(chosen))

    def _share(self, sentences: TokenisedSet) -> list[dict[str, Any]]:
        processes = state().num_processes
        batches = list(sentences.batches(min(64, -(-len(sentences) // processes))))
        return batches[state().process_index :: processes]

    @cached_property
    def judge(self) -> Judge:
        """By whose verdict a step without labels is kept."""
        return Judge(self.model, self.sets["held"])

    @cached_property
    def _float_answers(self) -> torch.Tensor:
        """The float model's logits on dev."""
        return predictions(hccs.nn.detach(self.load("float").eval()), self.sets["dev"])

    def reached(self, answers: torch.Tensor) -> dict[str, Any]:
        """The dev score of a model's answers and its difference from the float model, with their errors."""
        labels, base = self.sets["dev"].labels, self._float_answers
        own = measured(self.metric, answers, labels)
        against = difference(self.metric, answers, base.to(answers.device), labels)
        return {
            self.metric.name: own.value,
            "error": own.error,
            "against_float": [against.value, against.error],
        }

    def score(self, model: Any) -> dict[str, Any]:
        """What a model reaches on dev."""
        return self.reached(predictions(model, self.sets["dev"]))

    def refused(self, error: HccsError) -> dict[str, Any]:
        """Why a model has no integer form: another family, or numbers that no integer could hold."""
        self.say(f"  not all in integers: {error}")
        return {"refused": str(error)}
