"""What a reproduction is made of: encoders with their recipes, experiments, and where everything lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hccs.conversion.training import Recipe
from hccs.errors import FileError, ParameterError
from hccs_lab.compare.entries import FLOAT, default_labels

CALIBRATION_SENTENCES = 512
"""Training sentences, without their labels, that theta is fitted to."""

CORRECTION_SENTENCES = 2048
"""Training sentences, without their labels, that weights are corrected on."""

UNLABELLED_SENTENCES = 8192
"""Training sentences of training without labels."""

PATIENCE = 100
"""Evaluations without a better score after which training ends: none ends early, for the last epochs, at low
rates, are often the best."""


SURROGATE_ROWS = 512
"""Rows of every head on which methods are calibrated, and others on which they are measured."""

SURROGATE_EPOCHS = 1.0
"""Epochs of the retraining that all methods have in common."""

PREFIX, PREFIX_RETRAINED = "surrogates", "surrogates retrained"
"""Names of stages begin with these; a label follows."""

LABELS = tuple(
    own
    for label in default_labels()
    for own in ((label, f"{label}:mode=u8_lin") if label.startswith("hccs_two_lines") else (label,))
)
"""Every method, HCCS in every mode, and two lines in the one without a division."""

RETRAINED_LABELS = (FLOAT, *(label for label in LABELS if label != "softmax"))
"""The float model, which tells what the budget alone is worth, then every method but softmax itself."""


@dataclass(frozen=True)
class TaskRecipe:
    """How an encoder is fine-tuned on a task, how it is retrained, and how trained in integers."""

    fine_tuning: Recipe
    retraining_rate: float
    retraining_epochs: float = 3.0
    whole_epochs: float = 2.0
    whole_batch: int = 128


@dataclass(frozen=True)
class TrainedEncoder:
    """A pre-trained encoder under the data folder and its recipe for each task."""

    folder: str
    title: str
    recipes: dict[str, TaskRecipe]


def _recipe(epochs: float, rate: float) -> Recipe:
    return Recipe(epochs=epochs, learning_rate=rate, batch_size=128, patience=PATIENCE)


ENCODERS = {
    "minilm": TrainedEncoder(
        "minilm",
        "MiniLM-L6",
        {
            "mnli": TaskRecipe(_recipe(4, 1e-4), 4e-5),
            "sst2": TaskRecipe(_recipe(3, 8e-5), 4e-5, whole_batch=192),
        },
    ),
    "small": TrainedEncoder(
        "bert_small_l4_h512_a8",
        "BERT-small",
        {
            "mnli": TaskRecipe(_recipe(3, 1e-4), 6e-5),
            "sst2": TaskRecipe(_recipe(3, 1e-4), 6e-5, whole_batch=192),
        },
    ),
    "tiny": TrainedEncoder(
        "bert_tiny_l2_h128_a2",
        "BERT-tiny",
        {
            "mnli": TaskRecipe(_recipe(4, 3e-4), 1.5e-4, retraining_epochs=6, whole_epochs=6),
            "sst2": TaskRecipe(_recipe(4, 3e-4), 1.5e-4, whole_epochs=4, whole_batch=192),
        },
    ),
}
"""Encoders and their tasks, those that take longest first: begun last, one would be left to run alone."""


@dataclass(frozen=True)
class Experiment:
    """One model, task and seed."""

    model: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.task}-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """Where the data is, where results go, where what is large lies meanwhile, and which stages to do."""

    data: Path
    out: Path
    work: Path
    stages: tuple[str, ...] = field(default=())

    def cell(self, experiment: Experiment) -> Path:
        return self.out / "cells" / f"{experiment.name}.json"

    def model(self, experiment: Experiment) -> Path:
        return self.work / "models" / experiment.name


def experiments(models: Sequence[str], tasks: Sequence[str], seeds: int) -> list[Experiment]:
    """All experiments with tasks that an encoder has a recipe for, those that take longest first."""
    require_known("models", models, ENCODERS)
    require_known("tasks", tasks, {task: None for e in ENCODERS.values() for task in e.recipes})
    chosen = [
        Experiment(model, task, seed)
        for model, encoder in ENCODERS.items()
        for task in encoder.recipes
        for seed in range(seeds)
        if model in models and task in tasks
    ]
    if not chosen:
        raise ParameterError(
            f"a task among those of {', '.join(models)}", ", ".join(tasks), "Add a model or a task."
        )
    return chosen


def require_known(what: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ParameterError(
            f"{what} among {', '.join(known)}", ", ".join(map(repr, unknown)) or "none", "Choose from these."
        )


def parent_of_tasks(data: Path) -> Path:
    """The folder with every task's folder, for it or for one of those, which `hccs convert --data` takes."""
    tasks = {task for encoder in ENCODERS.values() for task in encoder.recipes}
    is_task = data.resolve().name in tasks and (data / "train.tsv").exists()
    return data.resolve().parent if is_task else data


def require_data(data: Path, needed: Sequence[str]) -> None:
    """Refuse a folder that lacks what is needed, before anything is written."""
    lacking = [name for name in dict.fromkeys([*needed, "vocab.txt"]) if not (data / name).exists()]
    if lacking:
        raise FileError(f"{', '.join(lacking)} in {data}", "nothing there", "Check --data.")
