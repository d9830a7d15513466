"""Stages that write what is delivered: attention in integers, the whole model in integers, the table."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import torch

import hccs.nn
from hccs._files import atomic
from hccs.calibration import fidelity
from hccs.conversion.conversion_run import ConversionRun
from hccs.conversion.reconstructing import mend
from hccs.conversion.runs.processes import state
from hccs.conversion.steps import SCALES
from hccs.conversion.training_stages import BEFORE, training_answers, trains_whole
from hccs.conversion.whole import score_whole, write_whole
from hccs.errors import HccsError
from hccs.nn import IntegerPlan
from hccs.nn.integer import NORMALISATION
from hccs.numbers.table import CONVERTED


def integer_attention(run: ConversionRun) -> dict[str, Any]:
    """Scales of the model's q, k and v, saved with it; its accuracy with attention in integers."""
    model = _to_deliver(run)
    table = hccs.nn.calibrate_operands(model, hccs.nn.current_table(model), run.calibration_share())
    run.keep(hccs.nn.attach(model, table), "model")
    if table.mode not in NORMALISATION:
        return {}
    hccs.nn.attach(model, table, backend="integer")
    return run.score(model)


def _to_deliver(run: ConversionRun) -> Any:
    """The retrained model as its stage saved it; without retraining the calibrated one."""
    if run.settings.retraining is None:
        return hccs.nn.attach(*run.calibrated()).eval()
    return hccs.nn.restore(run.load("retrained"))


def whole(run: ConversionRun) -> dict[str, Any]:
    """The delivered model all in integers, where it has such a form."""
    before = run.results_of(BEFORE)
    if "refused" in before:
        return {"refused": before["refused"]}
    trained, mended = None, {}
    if trains_whole(run):
        trained = training_answers(run)
    else:
        try:
            mended = _lower_untrained(run)
        except HccsError as error:
            return run.refused(error)
    answers: list[torch.Tensor] = []
    scored = score_whole(run.path, run.delivered(), run.sets["dev"], run.metric, trained, answers.append)
    return {**scored, **run.reached(*answers), **({"reconstructed": mended} if mended else {})}


def _lower_untrained(run: ConversionRun) -> dict[str, Any]:
    """Write the delivered model all in integers, its weights mended once more for their rounding.

    Scales of values come first and stay; those of weights are the mended weights' own.
    """
    model = run.delivered()
    batches = list(run.sets["calibration"].batches(64))
    table, pixels = hccs.nn.current_table(model), run.sets["calibration"].pixels
    plan = IntegerPlan.measured(model, table, batches, SCALES, pixels=pixels)
    plan.lower()  # refuses before anything is mended
    found: dict[str, Any] = {}
    if run.settings.reconstructs:
        with plan.training():
            found = mend(model, run.model, run.mending_share, run.judge)
    write_whole(plan.lower(), run.path, run.start.tokenizer, run.settings.task.problem, run.n)
    return found


def save(run: ConversionRun) -> dict[str, Any]:
    """The delivered model's table as a file beside it, and its KL; what only stages needed goes."""
    model = run.delivered()
    table = hccs.nn.current_table(model)
    stats = hccs.nn.collect(model, run.calibration_share(), n=run.n, scale=table.scale)
    found = fidelity(stats, table)
    if state().is_main_process:
        table.save(run.path / CONVERTED)
        atomic.replace(run.path / "model.hccs.json", table.to_json().encode())
        for needless in ("checkpoints", "retrained", "reconstructed"):
            shutil.rmtree(run.path / needless, ignore_errors=True)
    return {
        "model": "model",
        "table": CONVERTED,
        "mode": table.mode.value,
        "kl": float(found[..., 0].mean()),
        "heads": [
            {
                "layer": layer,
                "head": head,
                "kl": float(found[layer, head, 0]),
                "kl_renormalised": float(found[layer, head, 1]),
                "entropy": -stats.summary([layer * table.shape[1] + head]).negative_entropy,
            }
            for layer, head in np.ndindex(table.shape)
        ],
    }
