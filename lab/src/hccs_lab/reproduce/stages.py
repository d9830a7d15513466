"""The stages of an experiment, those that matter most first; each starts from the float model alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

import hccs.nn
from hccs.calibration import fidelity
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.evaluate import integer_logits, share_equal
from hccs.conversion.models import predictions
from hccs.conversion.stages import plan_whole
from hccs.conversion.training import RETRAINING, Recipe, train
from hccs.errors import FileError, HccsError, MissingExtraError
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs_lab.compare import steps
from hccs_lab.compare.entries import FLOAT, Entry, parse
from hccs_lab.compare.measures import MEASURES
from hccs_lab.fidelity import measure
from hccs_lab.reproduce.experiment import FORMS, WITHOUT_DIVISION, ExperimentRun
from hccs_lab.reproduce.plan import (
    LABELS,
    PATIENCE,
    PREFIX,
    PREFIX_RETRAINED,
    RETRAINED_LABELS,
    SURROGATE_EPOCHS,
    require_known,
)

UNLABELLED_EPOCHS = 2.0
"""Epochs of training without labels."""

CHECKED = 64
"""Dev examples on which an integer program itself is asked, in NumPy."""


def _forms(forms: Sequence[str], work: ExperimentRun) -> dict[str, Any]:
    """Forms without training: those with parameters per head in every mode."""
    return {form: _form(work, form) for form in forms}


def _form(work: ExperimentRun, form: str) -> dict[str, Any]:
    calibration, seconds = work.calibrated(form)
    modes = tuple(Mode) if "granularity" not in FORMS[form] else (Mode.I16_DIV,)
    return {
        "modes": work.in_modes(work.copy(), calibration.table, modes),
        "kl": work.divergence(calibration.table),
        "seconds": round(seconds, 2),
    }


def refined(work: ExperimentRun) -> dict[str, Any]:
    """Theta and scales fitted to the float model's answers, for each mode that is deployed."""
    found: dict[str, Any] = {}
    for form, mode in (
        ("two lines", Mode.I16_DIV),
        ("two lines", WITHOUT_DIVISION),
        ("one line", Mode.I16_DIV),
        ("two lines, uint8", WITHOUT_DIVISION),
    ):
        model, start = work.copy(), replace(work.calibrated(form)[0].table, mode=mode)
        before = work.judge(hccs.nn.attach(model, start))
        table = work.refined(form, mode)
        step = work.kept_step(work.judge(hccs.nn.attach(model, table)), before)
        found[f"{form}, {mode.value}"] = {**work.measured(model), **step}
    return found


def corrected(work: ExperimentRun) -> dict[str, Any]:
    """Weights corrected, then theta refined; each step is kept if it does not lose beyond noise."""
    return {form: _corrected(work, form) for form in ("two lines", "one line")}


def _corrected(work: ExperimentRun, form: str) -> dict[str, Any]:
    table = work.calibrated(form)[0].table
    plain = hccs.nn.attach(work.copy(), table)
    answers, model = [work.judge(plain)], work.corrected(form)
    found: dict[str, Any] = {"calibrated": work.measured(plain)}
    answers.append(work.judge(model))
    found["mended"] = {**work.measured(model), **work.kept_step(answers[1], answers[0])}
    found[f"mended, {WITHOUT_DIVISION.value}"] = work.measured(hccs.nn.attach(model, table, WITHOUT_DIVISION))
    hccs.nn.attach(model, table)
    refined = hccs.nn.refine(model, table, work.batches, teacher=work.model)
    answers.append(work.judge(hccs.nn.attach(model, refined)))
    found["mended, refined"] = {**work.measured(model), **work.kept_step(answers[2], answers[1])}
    hccs.nn.attach(model, table)
    taken = ["calibrated"]
    for step in ("mended", "mended, refined"):
        if not found[step]["kept"]:
            break
        taken.append(step)
    found["delivered"] = {**found[taken[-1]], "steps": taken}
    return found


def all_integers_corrected(work: ExperimentRun) -> dict[str, Any]:
    """All in integers, weights corrected first for two lines, then once more for the integers around them."""
    model, table = copy.deepcopy(work.corrected("two lines")), work.calibrated("two lines")[0].table
    plan = plan_whole(model, table, work.calibration)
    with plan.training():
        found = {"mended once": work.measured(model)}
        before = work.judge(model)
        hccs.nn.reconstruct(model, work.correction, teacher=work.model)
        step = work.kept_step(work.judge(model), before)
        return {**work.measured(model), **step, **found}


def _all_integers(work: ExperimentRun, table: ParamTable) -> dict[str, Any]:
    """All in integers from the float weights, without training."""
    model = work.copy()
    attention = work.measured(hccs.nn.attach(model, table))
    plan = plan_whole(model, table, work.calibration)
    with plan.training():
        found = work.measured(model)
    return {**found, "attention": attention, **_checked(work, plan)}


def _checked(work: ExperimentRun, plan: Any) -> dict[str, Any]:
    """The share of a sample of answers that are the same in the training model and its program."""
    dev = work.sets["dev"]
    sample = dev.at(range(0, len(dev), max(1, len(dev) // CHECKED)))
    with plan.training(), torch.no_grad():
        own = predictions(plan.model, sample)
    equal = share_equal(integer_logits(plan.lower(), sample), own, sample.labels)
    return {"equal": equal, "compared": len(sample)}


def retrained(work: ExperimentRun) -> dict[str, Any]:
    """Retrained with labels, one line per head as the paper; every mode, and KL before and after."""
    model = work.copy()
    before = work.calibrated("one line")[0].table
    found = _retrain(work, model, work.refined("one line"), "one line")
    found |= _of_retrained(work, model, before)
    if work.experiment.seed == 0:
        after = hccs.nn.current_table(model)
        found["fidelity"] = measure(work.copy(), hccs.nn.attach(model, after), before, work.judged)
    return found


def retrained_two_lines(work: ExperimentRun) -> dict[str, Any]:
    model, table = work.copy(), work.calibrated("two lines")[0].table
    return {**_retrain(work, model, table, "two lines"), **_of_retrained(work, model, table)}


def _of_retrained(work: ExperimentRun, model: Any, before: ParamTable) -> dict[str, Any]:
    """A retrained model in every mode, and KL before and after."""
    after = hccs.nn.current_table(model)
    modes = work.in_modes(model, after)
    stats = hccs.nn.collect(model, list(work.judged.batches(64)), n=after.n, scale=after.scale)
    return {
        "modes": modes,
        "kl_before": work.divergence(before),
        "kl_after": [float(kl) for kl in fidelity(stats, after)[..., 0].reshape(-1)],
    }


def unlabelled(work: ExperimentRun) -> dict[str, Any]:
    """Trained on sentences alone, from one line and from two: the float model's answers are the only teacher.

    As `hccs convert --unlabelled` trains: held-back sentences choose by the float model's answers, too.
    """
    return {form: _unlabelled(work, form) for form in ("two lines", "one line")}


def _unlabelled(work: ExperimentRun, form: str) -> dict[str, Any]:
    held = work.sets["held"]
    held = held.labelled_by(predictions(work.model, held))
    recipe = replace(_recipe(work), epochs=UNLABELLED_EPOCHS, distil=1.0)
    model = hccs.nn.attach(work.copy(), work.calibrated(form)[0].table)
    return _trained(work, model, work.unlabelled, held, recipe, f"unlabelled-{form}")


def _granularity(granularity: str, work: ExperimentRun) -> dict[str, Any]:
    """Retrained with one line per layer, or one for all heads."""
    form = f"one line, {granularity}"
    return _retrain(work, work.copy(), work.calibrated(form)[0].table, form)


def retrained_float(work: ExperimentRun) -> dict[str, Any]:
    """The float model retrained just as long: what the budget alone is worth."""
    return _trained(work, work.copy(), work.taught, work.sets["held"], _recipe(work), "retrained-float")


def _retrain(work: ExperimentRun, model: Any, table: ParamTable, name: str) -> dict[str, Any]:
    hccs.nn.attach(model, table)
    return _trained(work, model, work.taught, work.sets["held"], _recipe(work), f"retrained-{name}")


def _trained(
    work: ExperimentRun, model: Any, data: TokenisedSet, held: TokenisedSet, recipe: Recipe, name: str
) -> dict[str, Any]:
    """What a model reaches when it is trained as it stands."""
    outcome = train(model, data, held, recipe, work.checkpoint(name), say=work.say)
    return {**work.measured(model), "held": outcome.score, "history": outcome.history}


def _recipe(work: ExperimentRun, epochs: float | None = None) -> Recipe:
    """The default retraining, as long as the encoder needs unless told, and at its rate."""
    own = work.recipe
    epochs = own.retraining_epochs if epochs is None else epochs
    rate, seed = own.retraining_rate, work.experiment.seed
    return replace(RETRAINING, epochs=epochs, learning_rate=rate, patience=PATIENCE, seed=seed)


def all_integers_trained(work: ExperimentRun) -> dict[str, Any]:
    """All in integers, trained with the program's forward pass and distilled from the float model."""
    recipe = replace(_recipe(work, work.recipe.whole_epochs), batch_size=work.recipe.whole_batch)
    plan = plan_whole(work.copy(), work.refined("one line"), work.calibration)
    with plan.training():
        found = _trained(work, plan.model, work.taught, work.sets["held"], recipe, "whole")
    return {**found, "recipe": asdict(recipe), **_checked(work, plan)}


def _replaced(label: str, work: ExperimentRun) -> dict[str, Any]:
    """A method in the float weights: points on dev, and how far from softmax it is on held-back rows."""
    entry = parse([label])[-1]
    try:
        own = _parameters(work, entry)
        distances = steps.fidelity(entry, own, work.rows[1])
        found = work.measured(steps.attached(entry, own, work.model, work.rows[0]))
    except (FileError, MissingExtraError):
        raise  # a disk or a missing package, which no method is to blame for
    except HccsError as error:
        return {"refused": str(error)}
    return {**found, "distances": {name: round(distances[name], 6) + 0.0 for name in MEASURES}}


def _replaced_and_retrained(label: str, work: ExperimentRun) -> dict[str, Any]:
    """A method after the common recipe, from the float weights, the float model its teacher."""
    entry = parse([label])[-1]
    try:
        own = None if entry.method == FLOAT else _parameters(work, entry)
        model = steps.attached(entry, own, work.model, work.rows[0])
        recipe, name = _recipe(work, SURROGATE_EPOCHS), f"surrogates-{entry.file_name}"
        # A scale that a method does not know is met by its first batch.
        return _trained(work, model, work.taught, work.sets["held"], recipe, name)
    except (FileError, MissingExtraError):
        raise  # as above
    except HccsError as error:
        return {"refused": str(error)}


def _parameters(work: ExperimentRun, entry: Entry) -> steps.Parameters:
    return steps.completed(entry, work.fitted(entry.method), work.rows[0])


WITHOUT_TRAINING = {f"{PREFIX} {label}": partial(_replaced, label) for label in LABELS}
RETRAINED = {
    f"{PREFIX_RETRAINED} {label}": partial(_replaced_and_retrained, label) for label in RETRAINED_LABELS
}
"""One stage for each softmax replacement, measured by the steps of `hccs compare`: a run that is cut off
loses one method at most, and a method that fails leaves the others."""

STAGES: dict[str, Callable[[ExperimentRun], dict[str, Any]]] = {
    "float": ExperimentRun.fine_tuned,
    "one line": partial(_forms, ("one line", "one line, layer", "one line, global")),
    "two lines": partial(_forms, ("two lines", "two lines, uint8")),
    "mended": corrected,
    "refined": refined,
    "retrained": retrained,
    "retrained two lines": retrained_two_lines,
    "whole two lines": lambda work: _all_integers(work, work.calibrated("two lines")[0].table),
    "whole": lambda work: _all_integers(work, work.refined("one line")),
    "unlabelled": unlabelled,
    "whole trained": all_integers_trained,
    "whole mended": all_integers_corrected,
    "wide": partial(_forms, ("one line, wide",)),
    **WITHOUT_TRAINING,
    "retrained layer": partial(_granularity, "layer"),
    "retrained global": partial(_granularity, "global"),
    "retrained float": retrained_float,
    **RETRAINED,
}
"""The most important stages come first."""

EXTRA = ("retrained layer", "retrained global", "retrained float", *RETRAINED)
"""Stages that are done when they are asked for: each is a training of its own."""

TOGETHER = {
    PREFIX: tuple(WITHOUT_TRAINING),
    PREFIX_RETRAINED: tuple(RETRAINED),
}
"""Names for many stages: one for every softmax replacement."""


def named(names: Sequence[str]) -> tuple[str, ...]:
    """The stages that are asked for, by their own names or by one for many; all but `EXTRA` if none is."""
    if not names:
        return tuple(name for name in STAGES if name not in EXTRA)
    single = [name for name in STAGES if not any(name in many for many in TOGETHER.values())]
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        require_known("stages", unknown, dict.fromkeys([*single, *TOGETHER]))
    return tuple(stage for name in names for stage in TOGETHER.get(name, (name,)))
