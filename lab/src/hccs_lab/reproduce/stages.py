"""The stages of an experiment, those that matter most first; each starts from the float model alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

import hccs.nn
from hccs.calibration import fidelity
from hccs.conversion.models import predictions
from hccs.conversion.report.fidelity import measure
from hccs.conversion.steps import RETRAINING, plan_whole, retrain, train_whole, with_mode
from hccs.conversion.training import Recipe, train
from hccs.conversion.whole import share_equal, whole_logits
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs_lab.reproduce import surrogate_plan, surrogates
from hccs_lab.reproduce.experiment import FORMS, WITHOUT_DIVISION, ExperimentRun
from hccs_lab.reproduce.plan import PATIENCE, require_known

UNLABELLED_EPOCHS = 2.0
"""Of training without labels."""

CHECKED = 64
"""Dev examples on which an integer program itself is asked, in NumPy."""


def fine_tuned(work: ExperimentRun) -> dict[str, Any]:
    """The float model."""
    return work.fine_tuned()


def one_line(work: ExperimentRun) -> dict[str, Any]:
    """One line per head in every mode; per layer and for all heads; without training."""
    return {form: _form(work, form) for form in ("one line", "one line, layer", "one line, global")}


def two_lines(work: ExperimentRun) -> dict[str, Any]:
    """Two lines per head with int16 and with uint8 scores, in every mode; without training."""
    return {form: _form(work, form) for form in ("two lines", "two lines, uint8")}


def wide(work: ExperimentRun) -> dict[str, Any]:
    """One line per head with wide sums."""
    return {"one line, wide": _form(work, "one line, wide")}


def _form(work: ExperimentRun, form: str) -> dict[str, Any]:
    calibration, seconds = work.calibrated(form)
    modes = tuple(Mode) if FORMS[form].granularity == "head" else (Mode.I16_DIV,)
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
        model, start = work.copy(), with_mode(work.calibrated(form)[0].table, mode)
        before = work.judge(hccs.nn.attach(model, start))
        table = work.refined(form, mode)
        step = work.kept_step(work.judge(hccs.nn.attach(model, table)), before)
        found[f"{form}, {mode.value}"] = {**work.measured(model), **step}
    return found


def mended(work: ExperimentRun) -> dict[str, Any]:
    """Weights mended in closed form, then theta refined; each step kept if it does not lose beyond noise."""
    return {form: _mended(work, form) for form in ("two lines", "one line")}


def _mended(work: ExperimentRun, form: str) -> dict[str, Any]:
    table = work.calibrated(form)[0].table
    plain = hccs.nn.attach(work.copy(), table)
    answers, model = [work.judge(plain)], work.mended(form)
    found: dict[str, Any] = {"calibrated": work.measured(plain)}
    answers.append(work.judge(model))
    found["mended"] = {**work.measured(model), **work.kept_step(answers[1], answers[0])}
    found[f"mended, {WITHOUT_DIVISION.value}"] = work.measured(hccs.nn.attach(model, table, WITHOUT_DIVISION))
    hccs.nn.attach(model, table)
    refined = hccs.nn.refine(model, table, work.batches, teacher=work.model)
    answers.append(work.judge(hccs.nn.attach(model, refined)))
    found["mended, refined"] = {**work.measured(model), **work.kept_step(answers[2], answers[1])}
    hccs.nn.attach(model, table)
    steps = ["calibrated"]
    for step in ("mended", "mended, refined"):
        if not found[step]["kept"]:
            break
        steps.append(step)
    found["delivered"] = {**found[steps[-1]], "steps": steps}
    return found


def whole(work: ExperimentRun) -> dict[str, Any]:
    """All in integers from the float weights, without training, from one line."""
    return _whole(work, work.copy(), work.refined("one line"))


def whole_two_lines(work: ExperimentRun) -> dict[str, Any]:
    """All in integers from the float weights, without training, from two lines."""
    return _whole(work, work.copy(), work.calibrated("two lines")[0].table)


def whole_mended(work: ExperimentRun) -> dict[str, Any]:
    """The same with weights mended first for two lines, then once more for the integers around them."""
    model, table = copy.deepcopy(work.mended("two lines")), work.calibrated("two lines")[0].table
    plan = plan_whole(model, table, work.calibration)
    with plan.training():
        found = {"mended once": work.measured(model)}
        before = work.judge(model)
        hccs.nn.reconstruct(model, work.mending, teacher=work.model)
        step = work.kept_step(work.judge(model), before)
        return {**work.measured(model), **step, **found}


def _whole(work: ExperimentRun, model: Any, table: ParamTable) -> dict[str, Any]:
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
    equal = share_equal(whole_logits(plan.lower(), sample), own, sample.labels)
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
    """Retrained with labels, two lines per head."""
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
    data = work.unlabelled
    held = work.sets["held"]
    held = held.labelled_by(predictions(work.model, held))
    recipe = replace(_recipe(work), epochs=UNLABELLED_EPOCHS, distil=1.0)
    model, table = work.copy(), work.calibrated(form)[0].table
    where = work.checkpoints(f"unlabelled-{form}")
    outcome = retrain(model, table, data, held, work.calibration, recipe, where, resumable=False)
    return {**work.measured(model), "held": outcome.score, "history": outcome.history}


def retrained_layer(work: ExperimentRun) -> dict[str, Any]:
    """Retrained with one line per layer."""
    return _granularity(work, "layer")


def retrained_global(work: ExperimentRun) -> dict[str, Any]:
    """Retrained with one line for all heads."""
    return _granularity(work, "global")


def _granularity(work: ExperimentRun, granularity: str) -> dict[str, Any]:
    form = f"one line, {granularity}"
    return _retrain(work, work.copy(), work.calibrated(form)[0].table, form, granularity)


def retrained_float(work: ExperimentRun) -> dict[str, Any]:
    """The float model retrained just as long: what the budget alone is worth."""
    model, recipe = work.copy(), _recipe(work)
    where = work.checkpoints("retrained-float")
    outcome = train(model, work.taught, work.sets["held"], recipe, where, resumable=False)
    return {**work.measured(model), "held": outcome.score, "history": outcome.history}


def _retrain(
    work: ExperimentRun, model: Any, table: ParamTable, name: str, granularity: str = "head"
) -> dict[str, Any]:
    outcome = retrain(
        model,
        table,
        work.taught,
        work.sets["held"],
        work.calibration,
        _recipe(work),
        work.checkpoints(f"retrained-{name}"),
        granularity=granularity,
        resumable=False,
    )
    return {**work.measured(model), "held": outcome.score, "history": outcome.history}


def _recipe(work: ExperimentRun) -> Recipe:
    """The default retraining, as long as the encoder needs and at its rate."""
    epochs, rate = work.recipe.retraining_epochs, work.recipe.retraining_rate
    return replace(
        RETRAINING, epochs=epochs, learning_rate=rate, patience=PATIENCE, seed=work.experiment.seed
    )


def whole_trained(work: ExperimentRun) -> dict[str, Any]:
    """All in integers, trained with the program's forward pass and distilled from the float model."""
    recipe = replace(_recipe(work), epochs=work.recipe.whole_epochs, batch_size=work.recipe.whole_batch)
    plan = plan_whole(work.copy(), work.refined("one line"), work.calibration)
    where = work.checkpoints("whole")
    outcome = train_whole(plan, work.taught, work.sets["held"], recipe, where, resumable=False)
    with plan.training():
        found = work.measured(plan.model)
    return {
        **found,
        "held": outcome.score,
        "history": outcome.history,
        "recipe": asdict(recipe),
        **_checked(work, plan),
    }


STAGES: dict[str, Callable[[ExperimentRun], dict[str, Any]]] = {
    "float": fine_tuned,
    "one line": one_line,
    "two lines": two_lines,
    "mended": mended,
    "refined": refined,
    "retrained": retrained,
    "retrained two lines": retrained_two_lines,
    "whole two lines": whole_two_lines,
    "whole": whole,
    "unlabelled": unlabelled,
    "whole trained": whole_trained,
    "whole mended": whole_mended,
    "wide": wide,
    **surrogates.WITHOUT_TRAINING,
    "retrained layer": retrained_layer,
    "retrained global": retrained_global,
    "retrained float": retrained_float,
    **surrogates.RETRAINED,
}
"""In the order of importance."""

EXTRA = ("retrained layer", "retrained global", "retrained float", *surrogates.RETRAINED)
"""Stages that are done when they are asked for: each is a training of its own."""

TOGETHER = {
    surrogate_plan.PREFIX: tuple(surrogates.WITHOUT_TRAINING),
    surrogate_plan.PREFIX_RETRAINED: tuple(surrogates.RETRAINED),
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
