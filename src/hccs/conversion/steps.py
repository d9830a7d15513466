"""The steps of a conversion as functions on models in memory; `convert` and `reproduce` are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hccs.nn
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import ACCURACY, Metric
from hccs.conversion.models import score
from hccs.conversion.training import Outcome, Recipe, taught, train
from hccs.nn import IntegerPlan
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable

RETRAINING = Recipe(epochs=3, learning_rate=5e-5, batch_size=128, distil=0.8, dropout=False)
"""What measurably helps, by default: see lab/docs/reproduction.md."""


SCALES = "least-error"
"""How the scales of whole encoders are chosen, with outlying channels apart: what MiniLM needs."""


def evaluate_modes(
    model: Any,
    table: ParamTable,
    dev: TokenisedSet,
    modes: Iterable[Mode] = Mode,
    metric: Metric = ACCURACY,
) -> dict[str, float]:
    """The dev score of the model with this table in each mode; leaves the table's own mode attached."""
    scores = {}
    for mode in modes:
        hccs.nn.attach(model, table, mode)
        scores[mode.value] = score(model, dev, metric)
    hccs.nn.attach(model, table)
    return scores


def retrain(
    model: Any,
    table: ParamTable,
    data: TokenisedSet,
    held_back: TokenisedSet,
    recipe: Recipe,
    checkpoint: Path | None = None,
    *,
    metric: Metric = ACCURACY,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Retrain a float model in place with HCCS attached; `held_back` chooses the best weights.

    With `recipe.distil` its own float predictions are asked first, unless `data` carries them.
    """
    hccs.nn.detach(model)
    if recipe.distil and data.predictions is None:
        data = taught(data, model)
    hccs.nn.attach(model, table)
    return train(model, data, held_back, recipe, checkpoint, metric=metric, say=say)


def plan_whole(model: Any, table: ParamTable, calibration_data: TokenisedSet) -> IntegerPlan:
    """The scales of a float model's integers, measured with HCCS in it; HCCS is detached again."""
    hccs.nn.attach(model, table)
    batches = list(calibration_data.batches(64))  # all of them in every process: ranges do not merge
    plan = IntegerPlan.measured(
        model, table, batches, SCALES, pixels=calibration_data.pixels, split_outliers=True
    )
    hccs.nn.detach(model)
    return plan


def train_whole(
    plan: IntegerPlan,
    data: TokenisedSet,
    held: TokenisedSet,
    recipe: Recipe,
    checkpoint: Path | None = None,
    *,
    metric: Metric = ACCURACY,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Train a plan's float model in place with the forward pass of its program, which `plan.lower` returns.

    With `recipe.distil` the model's own float predictions are asked first, unless `data` carries them.
    """
    if recipe.distil and data.predictions is None:
        data = taught(data, plan.model)
    with plan.training():
        return train(plan.model, data, held, recipe, checkpoint, metric=metric, say=say)


def with_mode(table: ParamTable, mode: Mode | str) -> ParamTable:
    """The same parameters for another mode."""
    return replace(table, mode=Mode(mode))
