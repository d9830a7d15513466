"""Stages that train: a float model without a head, and the converted one, in integers where it can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hccs.nn
from hccs.conversion.conversion_run import ConversionRun
from hccs.conversion.data.problems import CLASSIFICATION
from hccs.conversion.metrics import ACCURACY
from hccs.conversion.models import best_device, float_accuracy, predictions
from hccs.conversion.runs.processes import state
from hccs.conversion.scores import measured
from hccs.conversion.steps import evaluate_modes, plan_whole, retrain, train_whole
from hccs.conversion.training import Outcome, Recipe, train
from hccs.conversion.whole import write_whole
from hccs.errors import HccsError

BEFORE = "whole without training"
"""The stage that tries the float weights in integers."""

ANSWERS = "answers.npy"
"""The logits of the training model on the dev set, beside the weights it was saved with."""


def float_model(run: ConversionRun) -> dict[str, Any]:
    """Score the float model, fine-tuning it first if it came without a head for the problem."""
    model = hccs.nn.detach(run.start.model.to(best_device()))  # it may have been converted before
    if not run.start.has_head:
        why = "its head is replaced" if run.settings.new_head else "the model has no such head"
        run.say(f"  {why}: fine-tuning it on the task")
        recipe = replace(run.settings.fine_tuning, seed=run.settings.seed)
        where = run.path / "checkpoints" / "float"
        train(model, run.sets["train"], run.sets["held"], recipe, where, metric=run.metric, say=run.say)
    run.keep(model, "float")
    if run.metric == ACCURACY and run.settings.task.problem == CLASSIFICATION:
        float_accuracy(model, run.sets["dev"], run.data.labels)  # warns of labels in another order
    reached = measured(run.metric, predictions(model, run.sets["dev"]), run.sets["dev"].labels)
    return {
        run.metric.name: reached.value,
        "error": reached.error,
        "metric": run.metric.name,
        "examples": len(run.sets["dev"]),
        "cut": {part: run.sets[part].cut for part in ("train", "dev")},
        "fine_tuned": not run.start.has_head,
        "labels": list(run.data.labels),
        "fingerprints": run.fingerprints,
    }


def whole_without_training(run: ConversionRun) -> dict[str, Any]:
    """The float weights all in integers: the score of the model that is trained, before it is."""
    try:
        plan = plan_whole(run.model, run.table, run.sets["calibration"])
        plan.lower()
    except HccsError as error:
        hccs.nn.detach(run.model)
        return run.refused(error)
    with plan.training():
        return run.score(run.model)


def trains_whole(run: ConversionRun) -> bool:
    """Whether training computes in integers throughout."""
    before = run.results_of(BEFORE)
    return bool(before) and "refused" not in before


def retrained(run: ConversionRun) -> dict[str, Any]:
    """The model trained with HCCS in it, and what it reaches in every mode."""
    assert run.settings.retraining is not None
    recipe = replace(run.settings.retraining, seed=run.settings.seed)
    if run.settings.task.unlabelled:
        recipe = replace(recipe, distil=1.0)
    where = run.path / "checkpoints" / "retrain"
    if trains_whole(run):
        outcome, answers = _train_whole(run, recipe, where)
    else:
        outcome = retrain(
            run.model,
            run.table,
            run.sets["train"],
            run.sets["held"],
            run.sets["calibration"],
            recipe,
            where,
            granularity=run.settings.granularity,
            metric=run.metric,
            say=run.say,
        )
        run.keep(run.model, "retrained")
        answers = predictions(run.model, run.sets["dev"])
    table = hccs.nn.current_table(run.model)
    scores = evaluate_modes(run.model, table, run.sets["dev"], metric=run.metric)
    reached = run.reached(answers)
    return {**reached, "held_back": outcome.score, "history": outcome.history, "modes": scores}


def _train_whole(run: ConversionRun, recipe: Recipe, where: Path) -> tuple[Outcome, torch.Tensor]:
    """Train as the program computes, and write it with the scales of the training."""
    plan = plan_whole(run.model, run.table, run.sets["calibration"])
    train_set, held = run.sets["train"], run.sets["held"]
    outcome = train_whole(plan, train_set, held, recipe, where, metric=run.metric, say=run.say)
    with plan.training():
        answers = predictions(run.model, run.sets["dev"])
    run.keep(hccs.nn.attach(run.model, run.table), "retrained")
    if state().is_main_process:
        np.save(run.path / "retrained" / ANSWERS, answers.cpu().numpy())
    write_whole(plan.lower(), run.path, run.start.tokenizer, run.settings.task.problem, run.n)
    return outcome, answers


def training_answers(run: ConversionRun) -> torch.Tensor:
    """The logits that the training model had on dev when it was saved."""
    return torch.from_numpy(np.load(run.path / "retrained" / ANSWERS))
