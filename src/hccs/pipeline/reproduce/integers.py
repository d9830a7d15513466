"""`hccs reproduce integers`: what whole encoders in integers cost in accuracy, over models, tasks and seeds.

An experiment is one model, task and seed, as in `hccs.pipeline.reproduce.accuracy`, whose float models and
records it shares: HCCS with floats around it, all in integers without training, and trained with the
program's forward pass. Accuracies are those of the training model, whose answers are the program's own; that
they are is checked on a sample of the dev set.
"""

from __future__ import annotations

import copy
import json
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs._progress import track
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.reproduce.accuracy import (
    ENCODERS,
    Experiment,
    Plan,
    fine_tune_again,
    load_results,
    open_record,
    opened,
)
from hccs.pipeline.reproduce.tables import GROUPS, markdown_table
from hccs.pipeline.runs.processes import in_processes

CHECKED = 256
"""Dev examples on which the program itself is asked, in NumPy."""

EPOCHS = {"tiny": 6}
"""Where more than the default is worth its time: the smallest model is still learning after three."""

PATIENCE = 12
"""Evaluations without a better score after which training ends: as many as there are."""

STAGES = ("float", "integers/without", "integers/trained")


def run(plan: Plan, chosen: Sequence[Experiment], jobs: int = 1, say: Callable[[str], None] = print) -> None:
    """Run all experiments, several processes at a time; every finished stage is said and recorded."""
    with opened(plan, chosen):
        work = partial(run_experiment, plan, say=say)
        if jobs > 1:
            in_processes(work, chosen, jobs, "experiments")
            return
        for experiment in track(chosen, total=len(chosen), description="experiments"):
            work(experiment)


def run_experiment(plan: Plan, experiment: Experiment, say: Callable[[str], None] = print) -> None:
    """All stages of one experiment that are not recorded yet."""
    from hccs.pipeline.reproduce.experiment import ExperimentRun

    record = open_record(plan.out / "cells" / f"{experiment.name}.json")
    work = ExperimentRun(plan, experiment)
    stages: dict[str, Callable[[], dict[str, Any]]] = {
        "float": work.float_model,
        "integers/without": partial(without, work),
        "integers/trained": partial(trained, work),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        if record.done("float") and not work.kept:
            fine_tune_again(work, record.stages["float"]["accuracy"])
        for name, stage in stages.items():
            if not record.done(name):
                found = record.stage(name, stage)
                numbers = {key: value for key, value in found.items() if isinstance(value, float)}
                shown = ", ".join(f"{key} {value:.4f}" for key, value in numbers.items())
                say(f"{experiment.name} {name}: {shown}, {record.seconds[name]:.0f} s")


def without(work: Any) -> dict[str, Any]:
    """HCCS with floats around it and all in integers, both from the float weights."""
    import hccs.nn
    from hccs.numbers.modes import Mode
    from hccs.pipeline.convert.steps import plan_whole
    from hccs.pipeline.models import accuracy

    model, table = copy.deepcopy(work.model), work.refined(Mode.I16_DIV)
    found = {"hccs": accuracy(hccs.nn.attach(model, table), work.dev)}
    whole = plan_whole(model, table, work.calibration_set)
    with whole.training():
        found["whole"] = accuracy(model, work.dev)
    return {**found, **_checked(whole, work.dev)}


def trained(work: Any) -> dict[str, Any]:
    """All in integers, trained with the program's forward pass and distilled from the float model."""
    from hccs.numbers.modes import Mode
    from hccs.pipeline.convert.steps import plan_whole, train_whole

    recipe = replace(
        RETRAINING,
        learning_rate=work.recipe.retraining_rate,
        epochs=EPOCHS.get(work.experiment.model, RETRAINING.epochs),
        patience=PATIENCE,
        seed=work.experiment.seed,
    )
    model = copy.deepcopy(work.model)
    whole = plan_whole(model, work.refined(Mode.I16_DIV), work.calibration_set)
    data = work.taught_set if recipe.distil else work.train_set
    outcome = train_whole(whole, data, work.dev, recipe, work.new_checkpoints("integers"), resumable=False)
    return {
        "whole": outcome.score,
        "history": outcome.history,
        **_checked(whole, work.dev),
        "recipe": asdict(recipe),
    }


def _checked(whole: Any, dev: Any) -> dict[str, Any]:
    """The share of a sample of answers that are the same in the training model and its program."""
    import torch

    from hccs.pipeline.convert.whole import share_equal, whole_logits
    from hccs.pipeline.models import predictions

    every = max(1, len(dev) // CHECKED)
    sample = dev.at(range(0, len(dev), every))
    with whole.training(), torch.no_grad():
        own = predictions(whole.model, sample)
    equal = share_equal(whole_logits(whole.lower(), sample), own, sample.labels)
    return {"equal": equal, "compared": len(sample)}


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Per model and task: mean accuracies, and differences in points with their standard errors."""
    found = {}
    for task, model in GROUPS:
        cells = {
            name: record
            for name, record in results["cells"].items()
            if name.startswith(f"{model}-{task}-") and all(stage in record for stage in STAGES)
        }
        if not cells:
            continue
        rows = [
            (r["float"]["accuracy"], r[STAGES[1]]["hccs"], r[STAGES[1]]["whole"], r[STAGES[2]]["whole"])
            for r in cells.values()
        ]
        names = ("float", "hccs", "whole without training", "whole trained")
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        found[f"{model}-{task}"] = {
            **{name: statistics.fmean(values) for name, values in columns.items()},
            "without training against HCCS, points": _points(
                columns["whole without training"], columns["hccs"]
            ),
            "trained against float, points": _points(columns["whole trained"], columns["float"]),
            "equal answers": min(r[stage]["equal"] for r in cells.values() for stage in STAGES[1:]),
            "seeds": len(rows),
        }
    return found


def _points(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """The mean difference over seeds in points, and its standard error; 0 for one seed."""
    values = [100 * (a - b) for a, b in zip(these, those, strict=True)]
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [statistics.fmean(values), error]


def write(out: Path, command: str) -> None:
    """`whole_encoder.json` (every seed and the summary) and `whole_encoder.md` in the results folder."""
    results = load_results(out)
    kept = {
        name: {stage: record[stage] for stage in STAGES if stage in record}
        for name, record in results["cells"].items()
    }
    content = {
        "command": command,
        "summary": summary(results),
        "cells": kept,
        "encoders": {name: asdict(encoder) for name, encoder in ENCODERS.items()},
        "training": asdict(RETRAINING),
    }
    atomic.replace(out / "whole_encoder.json", json.dumps(content, indent=1).encode())
    atomic.replace(out / "whole_encoder.md", markdown(results).encode())


def markdown(results: dict[str, Any]) -> str:
    """The summary as a table."""
    head = [
        "model, task",
        "float",
        "HCCS, floats around it",
        "all integers, no training",
        "against HCCS, points",
        "all integers, trained",
        "against float, points",
        "answers equal to the training model's",
    ]
    return markdown_table(head, _rows(summary(results))) + "\n"


def _rows(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in found.items():
        yield [
            name.replace("-", ", "),
            f"{row['float']:.4f}",
            f"{row['hccs']:.4f}",
            f"{row['whole without training']:.4f}",
            "{:+.2f} ± {:.2f}".format(*row["without training against HCCS, points"]),
            f"{row['whole trained']:.4f}",
            "{:+.2f} ± {:.2f}".format(*row["trained against float, points"]),
            f"{100 * row['equal answers']:.1f} %",
        ]
