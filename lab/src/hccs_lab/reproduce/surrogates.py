"""Every softmax replacement from an experiment's float model: a stage each without training, and retrained.

Methods are calibrated and measured by the steps of `hccs compare`. As each is a stage of its own, a run that
is cut off loses one method at most, and a method that fails leaves the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hccs.conversion.steps import RETRAINING
from hccs.conversion.training import train
from hccs.errors import FileError, HccsError, MissingExtraError
from hccs_lab.compare import steps
from hccs_lab.compare.entries import FLOAT, Entry, parse
from hccs_lab.compare.measures import MEASURES
from hccs_lab.reproduce.experiment import ExperimentRun
from hccs_lab.reproduce.plan import PATIENCE
from hccs_lab.reproduce.surrogate_plan import (
    EPOCHS,
    LABELS,
    PREFIX,
    PREFIX_RETRAINED,
    RETRAINED_LABELS,
)

Stage = Callable[[ExperimentRun], dict[str, Any]]


def _measured(label: str, work: ExperimentRun) -> dict[str, Any]:
    """A method in the float weights: points on dev, and how far from softmax it is on held-back rows."""
    entry = _entry(label)
    try:
        own = _parameters(work, entry)
        distances = steps.fidelity(entry, own, work.rows[1])
        found = work.measured(steps.attached(entry, own, work.model, work.rows[0]))
    except (FileError, MissingExtraError):
        raise  # a disk or a missing package, which no method is to blame for
    except HccsError as error:
        return {"refused": str(error)}
    return {**found, "distances": {name: round(distances[name], 6) + 0.0 for name in MEASURES}}


def _retrained(label: str, work: ExperimentRun) -> dict[str, Any]:
    """A method after the common recipe, from the float weights, the float model its teacher."""
    entry = _entry(label)
    try:
        own = None if entry.method == FLOAT else _parameters(work, entry)
        model = steps.attached(entry, own, work.model, work.rows[0])
        where = work.checkpoints(f"surrogates-{entry.file_name}")
        # A scale that a method does not know is met by its first batch.
        outcome = train(model, work.taught, work.sets["held"], _recipe(work), where, resumable=False)
    except (FileError, MissingExtraError):
        raise
    except HccsError as error:
        return {"refused": str(error)}
    return {**work.measured(model), "held": outcome.score, "history": outcome.history}


def _entry(label: str) -> Entry:
    return parse([label])[-1]


def _parameters(work: ExperimentRun, entry: Entry) -> steps.Parameters:
    return steps.completed(entry, work.fitted(entry.method), work.rows[0])


def _recipe(work: ExperimentRun) -> Any:
    """The common retraining at the encoder's rate."""
    return replace(
        RETRAINING,
        epochs=EPOCHS,
        learning_rate=work.recipe.retraining_rate,
        patience=PATIENCE,
        seed=work.experiment.seed,
    )


def _stages(prefix: str, labels: Sequence[str], work: Callable[..., dict[str, Any]]) -> dict[str, Stage]:
    return {f"{prefix} {label}": partial(work, label) for label in labels}


WITHOUT_TRAINING = _stages(PREFIX, LABELS, _measured)
RETRAINED = _stages(PREFIX_RETRAINED, RETRAINED_LABELS, _retrained)
