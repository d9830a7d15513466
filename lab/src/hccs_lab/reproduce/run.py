"""`hccs reproduce run`: experiments beside each other, each stage recorded and told as soon as it is done."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from hccs._progress import track
from hccs.conversion.data.holdout import HOLDOUT_LIMIT
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.processes import in_processes
from hccs.conversion.runs.record import StageRecord
from hccs.conversion.steps import RETRAINING
from hccs.errors import HccsError
from hccs_lab.reproduce import sets, surrogate_plan
from hccs_lab.reproduce.plan import (
    CALIBRATION_SENTENCES,
    ENCODERS,
    MENDING_SENTENCES,
    UNLABELLED_SENTENCES,
    Experiment,
    Plan,
    require_data,
)


def run(plan: Plan, chosen: Sequence[Experiment], jobs: int = 1, say: Callable[[str], None] = print) -> None:
    """All stages of all experiments that are not recorded yet, several processes at a time.

    A stage that fails is told and left out; the others go on, and the command ends with a refusal.
    """
    with opened(plan, chosen):
        for task in dict.fromkeys(experiment.task for experiment in chosen):
            sets.prepared(task, plan.data, plan.work)  # once, not in every process
        work = partial(run_experiment, plan, say=say)
        if jobs > 1:
            in_processes(work, chosen, min(jobs, len(chosen)), "experiments")
        else:
            for experiment in track(chosen, total=len(chosen), description="experiments"):
                work(experiment)
    _require_all(plan, chosen)


@contextmanager
def opened(plan: Plan, chosen: Sequence[Experiment]) -> Iterator[None]:
    """Hold the results folder, made for these experiments; folders of other settings are refused."""
    require_data(plan.data, [name for e in chosen for name in (e.task, ENCODERS[e.model].folder)])
    with RunFolder(plan.out, settings(), marker="long"):
        (plan.out / "cells").mkdir(exist_ok=True)
        yield


def settings() -> dict[str, Any]:
    """What all results of a folder have in common."""
    return {
        "encoders": {name: asdict(encoder) for name, encoder in ENCODERS.items()},
        "retraining": asdict(RETRAINING),
        "calibration_sentences": CALIBRATION_SENTENCES,
        "mending_sentences": MENDING_SENTENCES,
        "unlabelled_sentences": UNLABELLED_SENTENCES,
        "held_back": HOLDOUT_LIMIT,
        "surrogates": {"rows": surrogate_plan.ROWS, "epochs": surrogate_plan.EPOCHS},
    }


def run_experiment(plan: Plan, experiment: Experiment, say: Callable[[str], None] = print) -> None:
    """All stages of one experiment that are not recorded yet."""
    from hccs_lab.reproduce.experiment import ExperimentRun
    from hccs_lab.reproduce.stages import STAGES

    record = StageRecord(plan.cell(experiment))
    work = ExperimentRun(plan, experiment)
    waiting = [name for name in STAGES if name in plan.stages and not record.done(name)]
    if not waiting:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        if record.done("float") and not work.kept:
            _fine_tune_again(work, record.stages["float"]["accuracy"])
        for name in waiting:
            try:
                found = record.stage(name, partial(STAGES[name], work))
            except Exception as error:  # whatever it is, the stages of the others are worth having
                say(f"{experiment.name} {name} failed: {type(error).__name__}: {error}")
                say(traceback.format_exc(limit=-3))
                if name == "float":
                    return
            else:
                say(
                    f"{time.strftime('%H:%M:%S')} {experiment.name} {line(name, found, record.seconds[name])}"
                )
            _free_memory()


def _fine_tune_again(work: Any, before: float) -> None:
    """Make a float model anew that was deleted, or that lies on another machine."""
    again = work.fine_tuned()["accuracy"]
    if again != before:
        warnings.warn(
            f"the float model of {work.experiment.name} was not kept; fine-tuned again it reaches "
            f"{again:.4f} instead of {before:.4f}, and the stages that are added start from it",
            stacklevel=2,
        )


def line(name: str, found: dict[str, Any], seconds: float) -> str:
    """A stage's figures in one line: accuracy, or points against float with their standard error."""
    shown = ", ".join(f"{what} {value}" if what else value for what, value in _figures(found))
    return f"{name}: {shown}; {seconds:.0f} s"


def _figures(found: dict[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    if "points" in found:
        yield name, f"{found['points']:+.2f} ± {found['points_error']:.2f}"
    elif "accuracy" in found:
        yield name, f"{found['accuracy']:.4f} ± {found['error']:.4f}"
    if "refused" in found:
        yield name, "refused"
    if "equal" in found:
        yield name, f"equal {found['equal']:.3f}"
    for key, value in found.items():
        if isinstance(value, dict) and key not in ("recipe", "fidelity", "examples"):
            yield from _figures(value, f"{name} {key}".strip())
    if isinstance(found.get("kl"), list):
        yield name, f"KL {sum(found['kl']) / len(found['kl']):.4f}"


def _free_memory() -> None:
    """Give cached memory of the device back: other processes share it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _require_all(plan: Plan, chosen: Sequence[Experiment]) -> None:
    lacking = [
        f"{experiment.name} {stage}"
        for experiment in chosen
        for stage in plan.stages
        if not StageRecord(plan.cell(experiment)).done(stage)
    ]
    if lacking:
        raise HccsError(
            "every stage to be done",
            f"{len(lacking)} that failed: {', '.join(lacking[:6])}",
            "What they said is above; the same command tries them again.",
        )
