"""`hccs reproduce run`: experiments beside each other, each stage recorded and told as soon as it is done."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hccs._progress import duration, track
from hccs.conversion.data.holdout import HOLDOUT_LIMIT
from hccs.conversion.fingerprints import require_same
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.record import StageRecord, read_json, write_json
from hccs.conversion.training import RETRAINING
from hccs.errors import HccsError
from hccs_lab.processes import in_processes
from hccs_lab.reproduce import sets
from hccs_lab.reproduce.plan import (
    CALIBRATION_SENTENCES,
    CORRECTION_SENTENCES,
    ENCODERS,
    SURROGATE_EPOCHS,
    SURROGATE_ROWS,
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
        run_each(partial(run_experiment, plan, say=say), chosen, jobs)
    _require_all(plan, chosen)


def run_each(work: Callable[[Experiment], None], chosen: Sequence[Experiment], jobs: int) -> None:
    if jobs > 1:
        in_processes(work, chosen, min(jobs, len(chosen)), "experiments")
    else:
        for experiment in track(chosen, total=len(chosen), description="experiments"):
            work(experiment)


@contextmanager
def opened(plan: Plan, chosen: Sequence[Experiment]) -> Iterator[None]:
    """Hold the results folder, made for these experiments; folders of other settings are refused."""
    require_data(plan.data, [name for e in chosen for name in (e.task, ENCODERS[e.model].folder)])
    with RunFolder(plan.out, settings()):
        require_same_data(plan, [e.task for e in chosen], [e.model for e in chosen], plan.out)
        (plan.out / "cells").mkdir(exist_ok=True)
        yield


def require_same_data(plan: Plan, tasks: Sequence[str], models: Sequence[str], out: Path) -> None:
    """Refuse to add to what was measured on other examples or from another encoder of the same name.

    Both folders note what they were made from: results, and models that later stages start from.
    """
    now = {task: sets.digest(sorted((plan.data / task).glob("*.tsv"))) for task in dict.fromkeys(tasks)}
    now["vocab.txt"] = sets.digest([plan.data / "vocab.txt"])
    for model in dict.fromkeys(models):
        folder = plan.data / ENCODERS[model].folder
        now[model] = sets.digest(sorted(path for path in folder.iterdir() if path.is_file()))
    note(now, *dict.fromkeys((out, plan.work)))


def note(now: dict[str, str], *folders: Path, name: str = "data.json") -> None:
    """Keep fingerprints in every folder, whose own must not differ."""
    kept = [folder / name for folder in folders]
    before = [
        read_json(path, "Delete it if its results are not needed.") if path.exists() else {} for path in kept
    ]
    for folder, noted in zip(folders, before, strict=True):
        require_same(noted, now, folder)
    for path, noted in zip(kept, before, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**noted, **now})


def settings() -> dict[str, Any]:
    return {
        "encoders": {name: asdict(encoder) for name, encoder in ENCODERS.items()},
        "retraining": asdict(RETRAINING),
        "calibration_sentences": CALIBRATION_SENTENCES,
        "mending_sentences": CORRECTION_SENTENCES,
        "unlabelled_sentences": UNLABELLED_SENTENCES,
        "held_back": HOLDOUT_LIMIT,
        "surrogates": {"rows": SURROGATE_ROWS, "epochs": SURROGATE_EPOCHS},
    }


def run_experiment(plan: Plan, experiment: Experiment, say: Callable[[str], None] = print) -> None:
    """All stages of one experiment that are not recorded yet."""
    from hccs_lab.reproduce.experiment import ExperimentRun
    from hccs_lab.reproduce.stages import STAGES

    record = StageRecord(plan.cell(experiment))
    work = ExperimentRun(plan, experiment, prefixed(say, experiment.name))
    waiting = {
        name: partial(stage, work)
        for name, stage in STAGES.items()
        if name in plan.stages and not record.done(name)
    }
    if not waiting:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        if record.done("float") and not work.kept:
            _fine_tune_again(work, record.stages["float"]["accuracy"])
        run_stages(experiment.name, record, waiting, say, _expected(plan, experiment, waiting))


def run_stages(
    experiment: str,
    record: StageRecord,
    stages: Mapping[str, Callable[[], dict[str, Any]]],
    say: Callable[[str], None],
    expected: Mapping[str, float] | None = None,
) -> None:
    """Do the stages that are not recorded: each is told when it begins, with an estimate, and when it ends.

    A stage that fails is told and left out, since the others are worth having; without the float model there
    are no others.
    """
    waiting = [name for name in stages if not record.done(name)]
    for number, name in enumerate(waiting, 1):
        left = sum((expected or {}).get(other, 0.0) for other in waiting[number - 1 :])
        estimate = f", about {duration(left)} for the rest" if left else ""
        say(f"{time.strftime('%H:%M:%S')} {experiment} {name} … {number} of {len(waiting)}{estimate}")
        try:
            found = record.stage(name, stages[name])
        except Exception as error:
            say(f"{experiment} {name} failed: {type(error).__name__}: {error}")
            say(traceback.format_exc(limit=-3))
            if name == "float":
                return
        else:
            say(f"{time.strftime('%H:%M:%S')} {experiment} {line(name, found, record.seconds[name])}")
        _free_memory()


def prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    """Says lines after a name, by which those of several processes are told apart."""
    return lambda text: say(f"{name}: {text.strip()}")


def _expected(plan: Plan, experiment: Experiment, stages: Iterable[str]) -> dict[str, float]:
    """The seconds that each stage took with another seed of the same model and task, where one is done."""
    found: dict[str, float] = {}
    for path in plan.cell(experiment).parent.glob(f"{experiment.model}-{experiment.task}-*.json"):
        found |= StageRecord(path).seconds
    return {name: found[name] for name in stages if name in found}


def _fine_tune_again(work: Any, before: float) -> None:
    """Fine-tune a float model once more that was deleted, or that lies on another machine."""
    reached = work.fine_tuned()["accuracy"]
    if reached != before:
        warnings.warn(
            f"the float model of {work.experiment.name} was not kept; fine-tuned once more it reaches "
            f"{reached:.4f} instead of {before:.4f}, and the stages that are added start from it",
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
            "Their errors are above; the same command tries them again.",
        )
