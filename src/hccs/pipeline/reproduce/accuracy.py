"""`hccs reproduce accuracy`: the paper's accuracy table and granularity ablation over seeds.

An experiment is one model, task and seed: fine-tune the float model, calibrate, evaluate without retraining,
retrain in each variant, evaluate. Every finished stage is kept in the experiment's record in `cells/`: an
interrupted reproduction goes on, and variants, seeds and models can be added later.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hccs._progress import track
from hccs.errors import FileError, ParameterError
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.runs.folder import RunFolder
from hccs.pipeline.runs.processes import in_processes
from hccs.pipeline.runs.record import StageRecord
from hccs.pipeline.training import Recipe

if TYPE_CHECKING:
    from hccs.pipeline.reproduce.experiment import ExperimentRun

CALIBRATION_SENTENCES = 512


@dataclass(frozen=True)
class TaskRecipe:
    """How an encoder is fine-tuned on a task, and at what rate it is retrained."""

    fine_tuning: Recipe
    retraining_rate: float


@dataclass(frozen=True)
class Encoder:
    """A pre-trained encoder under the data folder and its recipe for each task."""

    folder: str
    recipes: dict[str, TaskRecipe]


_SMALL = TaskRecipe(Recipe(epochs=3, learning_rate=1e-4), 5e-5)
ENCODERS = {
    "minilm": Encoder("minilm", {"sst2": TaskRecipe(Recipe(epochs=2, learning_rate=5e-5), 3e-5)}),
    "small": Encoder("bert_small_l4_h512_a8", {"mnli": _SMALL, "sst2": _SMALL}),
    "tiny": Encoder(
        "bert_tiny_l2_h128_a2",
        {
            "mnli": TaskRecipe(Recipe(epochs=4, learning_rate=2e-4), 1.5e-4),
            "sst2": TaskRecipe(Recipe(epochs=3, learning_rate=1e-4, batch_size=32), 1.5e-4),
        },
    ),
}
"""Encoders and their tasks, those that take longest first: begun last, one would be left to run alone."""


@dataclass(frozen=True)
class Variant:
    """One way to retrain."""

    granularity: str = "head"
    mode: str = "i16_div"
    changes: tuple[tuple[str, Any], ...] = ()
    float_softmax: bool = False


VARIANTS = {
    "head": Variant(),
    "global": Variant("global"),
    "layer": Variant("layer"),
    "u8_clb": Variant(mode="u8_clb"),
    "paper": Variant(changes=(("distil", 0.0),)),
    "learnt": Variant(changes=(("learn", True),)),
    "recalibrated": Variant(changes=(("recalibrate", True),)),
    "float-same-budget": Variant(float_softmax=True),
}
"""The default retraining at each granularity and in the fastest mode, then each idea against it; the last one
retrains the float model just as long, to show what the budget alone is worth."""


RENAMED = {"retrained/float, same budget": "retrained/float-same-budget"}
"""Stages under the names that earlier versions recorded them by."""


@dataclass(frozen=True)
class Experiment:
    """One model, task and seed."""

    model: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        """For files."""
        return f"{self.model}-{self.task}-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """What to run: where the data is, where results go, which variants, and whether to keep their weights."""

    data: Path
    out: Path
    variants: tuple[str, ...] = tuple(VARIANTS)
    keep_models: bool = False

    def __post_init__(self) -> None:
        _require_known("variants", self.variants, VARIANTS)


def experiments(models: Sequence[str], tasks: Sequence[str], seeds: int) -> list[Experiment]:
    """All experiments with tasks that an encoder has a recipe for, those that take longest first."""
    _require_known("models", models, ENCODERS)
    _require_known("tasks", tasks, {task: None for e in ENCODERS.values() for task in e.recipes})
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


def _require_known(what: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ParameterError(
            f"{what} among {', '.join(known)}", ", ".join(map(repr, unknown)) or "none", "Choose from these."
        )


@contextmanager
def opened(plan: Plan, chosen: Sequence[Experiment]) -> Iterator[None]:
    """Hold the results folder, made for these experiments; folders of other settings are refused."""
    _require_data(plan.data, chosen)
    settings = {
        "data": str(plan.data.resolve()),
        "encoders": {name: asdict(encoder) for name, encoder in ENCODERS.items()},
        "retraining": asdict(RETRAINING),
        "calibration_sentences": CALIBRATION_SENTENCES,
    }
    # Earlier versions wrote no settings; their folders are known by their records.
    with RunFolder(plan.out, settings, marker="cells"):
        (plan.out / "cells").mkdir(exist_ok=True)
        yield


def run(plan: Plan, chosen: Sequence[Experiment], jobs: int = 1) -> None:
    """Run all experiments, several processes at a time; what is recorded is not done again."""
    with opened(plan, chosen):
        if jobs > 1:
            in_processes(partial(run_experiment, plan), chosen, jobs, "experiments")
            return
        for experiment in track(chosen, total=len(chosen), description="experiments"):
            run_experiment(plan, experiment)


def _require_data(data: Path, chosen: Sequence[Experiment]) -> None:
    """Refuse a folder that lacks what an experiment needs, before anything is written."""
    needed = [name for e in chosen for name in (e.task, ENCODERS[e.model].folder)]
    lacking = [name for name in dict.fromkeys([*needed, "vocab.txt"]) if not (data / name).exists()]
    if lacking:
        raise FileError(f"{', '.join(lacking)} in {data}", "nothing there", "Check --data.")


def run_experiment(plan: Plan, experiment: Experiment) -> None:
    """All stages of one experiment that are not recorded yet."""
    from hccs.pipeline.reproduce.experiment import ExperimentRun

    record = open_record(plan.out / "cells" / f"{experiment.name}.json")
    work = ExperimentRun(plan, experiment)
    stages: dict[str, Callable[[], Any]] = {"float": work.float_model, "without": work.without_retraining}
    for name in plan.variants:
        stages[f"retrained/{name}"] = partial(work.retrained, name, VARIANTS[name])
    if all(record.done(name) for name in stages):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        if record.done("float") and not work.kept:
            fine_tune_again(work, record.stages["float"]["accuracy"])
        for name, stage in stages.items():
            record.stage(name, stage)


def fine_tune_again(work: ExperimentRun, before: float) -> None:
    """Make the float model anew that was deleted, or that an earlier version did not keep."""
    again = work.float_model()["accuracy"]
    if again != before:
        warnings.warn(
            f"the float model of {work.experiment.name} was not kept; fine-tuned again it reaches "
            f"{again:.4f} instead of {before:.4f}, and the variants that are added start from it",
            stacklevel=2,
        )


def retraining_recipe(recipe: TaskRecipe, variant: Variant, seed: int) -> Recipe:
    """The default retraining at the encoder's rate, with the variant's changes."""
    return replace(RETRAINING, learning_rate=recipe.retraining_rate, seed=seed, **dict(variant.changes))


def open_record(path: Path) -> StageRecord:
    """The record of an experiment."""
    return StageRecord(path, RENAMED)


def load_results(out: Path) -> dict[str, Any]:
    """The results of every experiment by name, with the recipes that made them."""
    records = {path.stem: open_record(path).stages for path in sorted((out / "cells").glob("*.json"))}
    encoders = {name: asdict(encoder) for name, encoder in ENCODERS.items()}
    return {"cells": records, "encoders": encoders, "retraining": asdict(RETRAINING)}
