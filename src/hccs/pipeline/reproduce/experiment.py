"""One experiment of the reproduction: the work behind each stage of `hccs.pipeline.reproduce.accuracy`."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import hccs.nn
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs.pipeline.convert.steps import Calibrated, calibrate, evaluate_modes, retrain, with_mode
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.models import Loaded, accuracy, best_device, load_classifier
from hccs.pipeline.reproduce.accuracy import (
    CALIBRATION_SENTENCES,
    ENCODERS,
    Experiment,
    Plan,
    Variant,
    retraining_recipe,
)
from hccs.pipeline.training import taught, train


class ExperimentRun:
    """The work of one experiment, which loads what it needs only when a stage asks for it."""

    def __init__(self, plan: Plan, experiment: Experiment) -> None:
        self.plan, self.experiment, self.encoder = plan, experiment, ENCODERS[experiment.model]
        self.recipe = self.encoder.recipes[experiment.task]
        self.folder = plan.out / "models" / experiment.name
        self._calibrations: dict[str, Calibrated] = {}
        self._refinements: dict[Mode, ParamTable] = {}

    @cached_property
    def data(self) -> tasks.TaskData:
        """The task's examples."""
        return tasks.load(tasks.TASKS[self.experiment.task], self.plan.data / self.experiment.task)

    @cached_property
    def tokenizer(self) -> Any:
        """The encoder's tokenizer: all three share BERT's vocabulary."""
        from hccs.pipeline.models import load_tokenizer

        return load_tokenizer(str(self.plan.data / self.encoder.folder), self.plan.data / "vocab.txt")

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self.tokenizer, self.data.task.n).to(best_device())

    @cached_property
    def train_set(self) -> TokenisedSet:
        """Training examples on the device."""
        return self._tokenised(self.data.train)

    @cached_property
    def taught_set(self) -> TokenisedSet:
        """Training examples with the float model's predictions."""
        return taught(self.train_set, self.model)

    @cached_property
    def dev(self) -> TokenisedSet:
        """Dev examples on the device."""
        return self._tokenised(self.data.dev)

    @cached_property
    def calibration_set(self) -> TokenisedSet:
        """A few hundred training sentences, drawn by the experiment's seed."""
        return self._tokenised(self.data.train.subset(CALIBRATION_SENTENCES, self.experiment.seed))

    def _load(self, folder: Path, *, new_head: bool = False) -> Loaded:
        import torch

        torch.manual_seed(self.experiment.seed)
        vocabulary = self.plan.data / "vocab.txt"
        return load_classifier(str(folder), self.data.labels, vocabulary, new_head=new_head)

    @cached_property
    def model(self) -> Any:
        """The fine-tuned float model; steps work on copies of it."""
        return self._load(self.folder).model.to(best_device()).eval()

    @property
    def kept(self) -> bool:
        """Whether the float model is there to go on from."""
        return (self.folder / "config.json").exists()

    def float_model(self) -> dict[str, Any]:
        """Fine-tune the encoder and keep it: variants that are added later start from it, too."""
        loaded = self._load(self.plan.data / self.encoder.folder, new_head=True)
        model = loaded.model.to(best_device())
        recipe = replace(self.recipe.fine_tuning, seed=self.experiment.seed)
        outcome = train(
            model, self.train_set, self.dev, recipe, self.new_checkpoints("float"), resumable=False
        )
        _save_whole(model, self.folder)
        return {"accuracy": outcome.score, "history": outcome.history}

    def new_checkpoints(self, name: str) -> Path:
        """A folder for the checkpoints of a training, without those of one that was killed."""
        folder = self.plan.out / "checkpoints" / f"{self.experiment.name}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def calibrated(self, granularity: str) -> Calibrated:
        """The calibration of the float model at a granularity, made once."""
        if granularity not in self._calibrations:
            self._calibrations[granularity] = calibrate(
                self.model, self.calibration_set, n=self.data.task.n, granularity=granularity
            )
        return self._calibrations[granularity]

    def without_retraining(self) -> dict[str, Any]:
        """Accuracy and KL of the float weights with HCCS, by granularity, mode and way of calibrating."""
        model, dev, n = copy.deepcopy(self.model), self.dev, self.data.task.n
        found: dict[str, Any] = {"float": accuracy(self.model, dev)}
        for name in ("head", "layer", "global"):
            calibrated = self.calibrated(name)
            heads = calibrated.calibration.heads
            modes = Mode if name == "head" else (Mode.I16_DIV,)
            found[name] = {
                "accuracy": evaluate_modes(model, calibrated.calibration.table, dev, modes),
                "kl": [h.kl for h in heads],
                "kl_renormalised": [h.kl_renormalised for h in heads],
                "entropy": [h.entropy for h in heads],
                "seconds": calibrated.seconds,
            }
            hccs.nn.detach(model)
        batches = self.calibrated("head").batches
        in_sequence = hccs.nn.calibrate_in_sequence(model, batches, n=n)
        found["in sequence"] = {"accuracy": evaluate_modes(model, in_sequence, dev, (Mode.I16_DIV,))}
        hccs.nn.detach(model)
        for mode in (Mode.I16_DIV, Mode.U8_CLB):
            found[f"refined {mode.value}"] = {"accuracy": evaluate_modes(model, self.refined(mode), dev)}
            hccs.nn.detach(model)
        return found

    def refined(self, mode: Mode) -> ParamTable:
        """One triple per head, fitted to the model's answers, as `hccs convert` does; made once."""
        if mode not in self._refinements:
            calibrated = self.calibrated("head")
            start = with_mode(calibrated.calibration.table, mode)
            self._refinements[mode] = hccs.nn.refine(copy.deepcopy(self.model), start, calibrated.batches)
        return self._refinements[mode]

    def retrained(self, name: str, variant: Variant) -> dict[str, Any]:
        """Retrain a copy of the float model in one variant and score it in all modes."""
        model = copy.deepcopy(self.model)
        recipe = retraining_recipe(self.recipe, variant, self.experiment.seed)
        where = self.new_checkpoints(name)
        data = self.taught_set if recipe.distil else self.train_set
        if variant.float_softmax:
            outcome = train(model, data, self.dev, recipe, where, resumable=False)
            return {"accuracy": outcome.score, "history": outcome.history}
        if variant.granularity == "head":
            table = self.refined(Mode(variant.mode))
        else:
            table = with_mode(self.calibrated(variant.granularity).calibration.table, variant.mode)
        outcome = retrain(
            model,
            table,
            data,
            self.dev,
            self.calibration_set,
            recipe,
            where,
            granularity=variant.granularity,
            resumable=False,
        )
        if self.plan.keep_models and name == "head":
            _save_whole(model, self.folder / "retrained")
        scores = evaluate_modes(model, hccs.nn.current_table(model), self.dev)
        return {"accuracy": outcome.score, "history": outcome.history, "modes": scores}

    def fidelity(self) -> dict[str, Any]:
        """KL and curves of the kept float and retrained models."""
        from hccs.pipeline.report.fidelity import measure

        retrained = self._load(self.folder / "retrained").model.to(best_device()).eval()
        table = self.calibrated("head").calibration.table
        return measure(copy.deepcopy(self.model), retrained, table, self.calibration_set)


def _save_whole(model: Any, folder: Path) -> None:
    """Save a model so that its folder appears whole or not at all."""
    fresh = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(fresh, folder)
