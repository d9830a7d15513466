"""`hccs reproduce accuracy`: the paper's accuracy table and granularity ablation, over seeds, resumable
cell by cell.

A cell is one model, task and seed: fine-tune the float model, calibrate, evaluate without retraining,
retrain in each
variant, evaluate. Every finished step is kept in the cell's JSON file, so that an interrupted run goes on.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hccs._progress import track
from hccs.errors import ParameterError
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.runs.processes import in_processes
from hccs.pipeline.runs.record import StageRecord
from hccs.pipeline.training import Recipe

CALIBRATION_SENTENCES = 512


@dataclass(frozen=True)
class Schedule:
    """How an encoder is fine-tuned on a task, and at what rate it is retrained."""

    fine_tuning: Recipe
    retraining_rate: float


@dataclass(frozen=True)
class Encoder:
    """A pre-trained encoder under the data folder and its schedule for each task."""

    folder: str
    schedules: dict[str, Schedule]


_SMALL = Schedule(Recipe(epochs=3, learning_rate=1e-4), 5e-5)
ENCODERS = {
    "tiny": Encoder(
        "bert_tiny_l2_h128_a2",
        {
            "sst2": Schedule(Recipe(epochs=3, learning_rate=1e-4, batch_size=32), 1.5e-4),
            "mnli": Schedule(Recipe(epochs=4, learning_rate=2e-4), 1.5e-4),
        },
    ),
    "small": Encoder("bert_small_l4_h512_a8", {"sst2": _SMALL, "mnli": _SMALL}),
    "minilm": Encoder("minilm", {"sst2": Schedule(Recipe(epochs=2, learning_rate=5e-5), 3e-5)}),
}


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
    "float, same budget": Variant(float_softmax=True),
}
"""The default retraining at each granularity and in the fastest mode, then each idea against it; the last one
retrains the float model just as long, to show what the budget alone is worth."""


@dataclass(frozen=True)
class Cell:
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
    """What to run: where the data is, where results go, which variants."""

    data: Path
    out: Path
    variants: tuple[str, ...] = tuple(VARIANTS)
    keep_models: bool = False


def cells(models: Sequence[str], tasks: Sequence[str], seeds: int) -> list[Cell]:
    """All cells of tasks an encoder has a schedule for; the long ones first, so that none is left alone."""
    unknown = [m for m in models if m not in ENCODERS]
    if unknown:
        raise ParameterError(f"models among {', '.join(ENCODERS)}", ", ".join(unknown), "Choose from these.")
    chosen = [
        Cell(model, task, seed)
        for seed in range(seeds)
        for model in models
        for task in tasks
        if task in ENCODERS[model].schedules
    ]
    order = {"minilm": 0, "small": 1, "tiny": 2}
    return sorted(chosen, key=lambda c: (order[c.model], c.task != "mnli", c.seed))


def run(plan: Plan, chosen: Sequence[Cell], jobs: int = 1) -> None:
    """Run all cells, several processes at a time."""
    (plan.out / "cells").mkdir(parents=True, exist_ok=True)
    if jobs == 1:
        for cell in track(chosen, total=len(chosen), description="cells"):
            run_cell(plan, cell)
        return
    in_processes(partial(run_cell, plan), chosen, jobs, "cells")


def run_cell(plan: Plan, cell: Cell) -> None:
    """All steps of one cell that are not recorded yet."""
    from hccs.pipeline.reproduce.experiment import CellRun

    record = StageRecord(plan.out / "cells" / f"{cell.name}.json")
    wanted = [f"retrained/{name}" for name in plan.variants]
    if all(name in record.stages for name in ("float", "without", *wanted)):
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        work = CellRun(plan, cell)
        record.stage("float", work.float_model)
        record.stage("without", work.without_retraining)
        for name in plan.variants:
            record.stage(f"retrained/{name}", partial(work.retrained, name, VARIANTS[name]))
    if not plan.keep_models:
        shutil.rmtree(work.folder, ignore_errors=True)


def retraining_recipe(schedule: Schedule, variant: Variant, seed: int) -> Recipe:
    """The default retraining on the encoder's schedule, with the variant's changes."""
    changes = dict(variant.changes)
    return replace(RETRAINING, learning_rate=schedule.retraining_rate, seed=seed, **changes)


def load_results(out: Path) -> dict[str, Any]:
    """Every cell's record by name, with the recipes that made them."""
    records = {p.stem: StageRecord(p).stages for p in sorted((out / "cells").glob("*.json"))}
    encoders = {name: asdict(encoder) for name, encoder in ENCODERS.items()}
    return {"cells": records, "encoders": encoders, "retraining": asdict(RETRAINING)}
