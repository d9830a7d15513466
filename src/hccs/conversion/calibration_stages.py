"""Stages that change no weight by a gradient: calibration, weights mended in closed form, their scores."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import hccs.nn
from hccs.calibration import HeadStatistics, search
from hccs.calibration.two_lines import USUAL_SCALE
from hccs.conversion.conversion_run import ConversionRun
from hccs.conversion.reconstructing import mend, refine
from hccs.conversion.runs.processes import state
from hccs.conversion.settings import ConversionSettings
from hccs.conversion.steps import evaluate_modes
from hccs.errors import HccsError


def collect(run: ConversionRun) -> dict[str, Any]:
    """Statistics of the float model's logits over the calibration sentences."""
    fitting = run.fitting
    stats = hccs.nn.collect(run.model, run.calibration_share(), n=run.n, scale=fitting.scale)
    if state().is_main_process:
        stats.save(run.path / "statistics.safetensors")
    scale = fitting.record["scale"]
    return {"sentences": len(run.sets["calibration"]), "rows": int(stats.rows.sum()), "scale": scale}


def calibrate(run: ConversionRun) -> dict[str, Any]:
    """The table of every head, refined here unless weights are mended first."""
    stats = HeadStatistics.load(run.path / "statistics.safetensors")
    settings, form = run.settings, run.settings.form
    run.say(f"  {form}{form.reason(settings.retraining is not None)}")
    objective = run.fitting.objective
    found = search(stats, run.n, settings.granularity, settings.mode, objective=objective, **asdict(form))
    table = found.table
    step: dict[str, Any] = {}
    if _refines(settings) and not settings.reconstructs:
        batches = list(run.sets["calibration"].batches(64))
        step = {"refined": refine(run.model, None, table, batches, run.judge)}
        table = hccs.nn.current_table(run.model)
        hccs.nn.detach(run.model)
    if state().is_main_process:
        table.save(run.path / "table.hccs.safetensors")
    heads = [
        {
            "layer": h.layer,
            "head": h.head,
            "kl": h.kl,
            "kl_renormalised": h.kl_renormalised,
            "entropy": h.entropy,
        }
        for h in found.heads
    ]
    # Statistics of a run that an earlier version began have the usual scale, whatever n.
    scale = run.results_of("collect").get("scale", USUAL_SCALE)
    return {
        "kl": found.kl,
        **asdict(form),
        "scale": scale,
        "objective": objective,
        **step,
        "heads": heads,
    }


def _refines(settings: ConversionSettings) -> bool:
    return settings.refine and settings.granularity == "head"


def reconstruct(run: ConversionRun) -> dict[str, Any]:
    """The float weights mended for HCCS, then theta refined; what later stages go on with."""
    model = hccs.nn.attach(run.load("float").eval(), run.table)
    try:
        found = mend(model, run.model, run.mending_share, run.judge)
    except HccsError as error:
        run.say(f"  weights stay as they are: {error}")
        found = {"refused": str(error)}
    if _refines(run.settings):
        batches = list(run.sets["calibration"].batches(64))
        found["refined"] = refine(model, run.model, run.table, batches, run.judge)
    run.keep(model, "reconstructed")
    return found


def without_retraining(run: ConversionRun) -> dict[str, Any]:
    """The calibrated model's score, in every mode."""
    model, table = run.calibrated()
    scores = evaluate_modes(model, table, run.sets["dev"], metric=run.metric)
    reached = run.score(model)
    hccs.nn.detach(model)
    return {**reached, "modes": scores}
