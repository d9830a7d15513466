"""`hccs evaluate RUN`: score a finished run again, any mode and backend, on its dev set or another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hccs.nn
from hccs.conversion.metrics import Metric, metric_for
from hccs.conversion.models import best_device, score
from hccs.conversion.runs.converted import ConvertedRun
from hccs.conversion.whole import load_whole, whole_logits
from hccs.errors import ParameterError
from hccs.nn.integer import NORMALISATION
from hccs.numbers.modes import Mode


def evaluate(
    run: str | Path,
    modes: tuple[str, ...] = (),
    file: str | None = None,
    backend: str = "float",
    metric: Metric | str | None = None,
) -> dict[str, Any]:
    """Scores of the float and the converted model of a run, the latter in each mode (default: all).

    The metric is the run's own unless another is given.
    With `backend="integer"` each mode is scored on float q, k, v and, as "MODE integer", on int8 ones; with
    "whole" the run's integer model takes the place of all modes.
    """
    if backend == "whole":
        return _evaluate_whole(Path(run), modes, file, metric)
    integer = backend == "integer"
    chosen = [Mode(mode) for mode in modes] or list(NORMALISATION if integer else Mode)
    finished = ConvertedRun(Path(run))
    dev, metric = finished.examples(file), _chosen(metric, finished)
    scores: dict[str, Any] = {
        "metric": metric.name,
        "examples": len(dev),
        "float": score(finished.float_model(), dev, metric),
    }
    model = finished.converted.model.to(best_device())
    for mode in chosen:
        scores[mode.value] = score(hccs.nn.attach(model, finished.table, mode), dev, metric)
        if integer:
            attached = hccs.nn.attach(model, finished.table, mode, backend=backend)
            scores[f"{mode.value} integer"] = score(attached, dev, metric)
    return scores


def _chosen(metric: Metric | str | None, finished: ConvertedRun) -> Metric:
    if isinstance(metric, Metric):
        return metric
    return metric_for(finished.settings.task.problem, metric) if metric else finished.metric


def _evaluate_whole(
    run: Path, modes: tuple[str, ...], file: str | None, metric: Metric | str | None
) -> dict[str, Any]:
    if modes:
        raise ParameterError(
            "no mode with the backend 'whole'",
            modes[0],
            "An integer model divides exactly: leave --mode out.",
        )
    finished = ConvertedRun(run)
    whole = load_whole(run)  # before anything is computed
    dev, metric = finished.examples(file), _chosen(metric, finished)
    return {
        "metric": metric.name,
        "examples": len(dev),
        "float": score(finished.float_model(), dev, metric),
        "whole": metric(whole_logits(whole, dev), dev.labels),
    }
