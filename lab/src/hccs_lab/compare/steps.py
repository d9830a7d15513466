"""The steps of one method: its parameters, fidelity and costs on rows; its accuracy in the model."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.conversion.models import accuracy
from hccs.conversion.training import train
from hccs.nn.attaching import fill
from hccs_lab import surrogates
from hccs_lab.compare.entries import FLOAT, Entry, declared_costs
from hccs_lab.compare.measures import FidelityCounter, row_measures
from hccs_lab.compare.sample import LogitSample
from hccs_lab.compare.source import FileSource, ModelSource
from hccs_lab.figures import drawn_heads
from hccs_lab.surrogates import Result
from hccs_lab.surrogates.fitting import float_softmax
from hccs_lab.surrogates.rows import distance

Parameters = dict[str, Any]
"""A method's parameters as JSON holds them: a number for every [layer][head], or one word for all."""


def parameters(entry: Entry, calibration: LogitSample, source: ModelSource | FileSource) -> Parameters:
    """Fixed values, and for the rest what the method's own calibration finds on the common rows."""
    width = source.head_size if isinstance(source, ModelSource) else None
    return completed(entry, fitted(entry.method, calibration, width), calibration)


def fitted(name: str, calibration: LogitSample, width: int | None) -> dict[str, Any]:
    """What a method's own calibration finds on the common rows; `width` is that of the model's heads."""
    method = surrogates.get(name)
    found = method.calibrate(calibration.logits, calibration.scale, calibration.valid)
    if method.attends is not None and width is not None:
        # Its source learns a gain and a gate for every channel.
        found["width"] = width
    return found


def completed(entry: Entry, found: dict[str, Any], calibration: LogitSample) -> Parameters:
    """What was fitted, but for what the entry fixes, for every [layer][head]."""
    chosen = {**found, **dict(entry.fixed)}
    return {
        name: value if isinstance(value, str) else np.broadcast_to(value, calibration.shape).tolist()
        for name, value in chosen.items()
    }


def of_layer(parameters: Parameters, layer: int) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str) else np.asarray(value[layer])
        for name, value in parameters.items()
    }


def outputs(
    entry: Entry, parameters: Parameters, sample: LogitSample, layers: Container[int]
) -> Iterator[tuple[int, NDArray[np.int8], NDArray[np.bool_], Result]]:
    """(layer, logits, mask, result) of a sample's rows of some layers, piece by piece."""
    method = surrogates.get(entry.method)
    for layer, rows in sample.pieces():
        if layer in layers:
            x, valid = sample.logits[layer][:, rows], sample.valid[layer][:, rows]
            yield layer, x, valid, method(x, sample.scale[layer], valid, **of_layer(parameters, layer))


def fidelity(entry: Entry, parameters: Parameters, sample: LogitSample) -> dict[str, Any]:
    """Every measure of distance from softmax, per head and overall."""
    counter = FidelityCounter(sample.shape)
    for layer, x, valid, result in outputs(entry, parameters, sample, range(sample.shape[0])):
        p = float_softmax(x, sample.scale[layer], valid)
        counter.add(layer, row_measures(p, result.probabilities, valid, result.unit))
    return counter.result().to_json()


def curves(entry: Entry, parameters: Parameters, sample: LogitSample) -> dict[str, list[float | None]]:
    heads = drawn_heads(sample.scale)
    layers = {layer for layer, _ in heads.values()}
    return mean_curves(heads, outputs(entry, parameters, sample, layers))


def costs(entry: Entry, k: int) -> dict[str, Any]:
    declared = declared_costs(entry)
    counts = {name: getattr(declared, name)(k) for name in ("operations", "divides", "exponentials")}
    told = ("input", "output", "bits_inside", "table_bytes", "integer_only", "trainable", "source")
    return {
        "k": k,
        **counts,
        **{name: getattr(declared, name) for name in told},
        "needs": sorted(declared.needs),
    }


def attached(entry: Entry, parameters: Parameters | None, model: Any, calibration: LogitSample) -> Any:
    own = copy.deepcopy(model)
    if entry.method == FLOAT:
        return own
    assert parameters is not None
    method = surrogates.get(entry.method)
    fill(
        {
            name: method.module(calibration.scale[layer], of_layer(parameters, layer))
            for layer, name in enumerate(calibration.layers)
        },
        own,
    )
    return own


def scored(
    entry: Entry, parameters: Parameters | None, source: ModelSource, calibration: LogitSample
) -> float:
    return accuracy(attached(entry, parameters, source.model, calibration), source.dev)


def retrained(
    entry: Entry,
    parameters: Parameters | None,
    source: ModelSource,
    calibration: LogitSample,
    checkpoints: Path,
) -> dict[str, Any]:
    """The accuracy after the common recipe, from the float weights, with the float model as teacher."""
    model = attached(entry, parameters, source.model, calibration)
    recipe = replace(source.settings.retraining, seed=source.settings.seed)
    data = source.taught_set if recipe.distil else source.train_set
    outcome = train(model, data, source.held_set, recipe, checkpoints)
    return {"accuracy": accuracy(model, source.dev), "history": list(outcome.history)}


DISTANCES = 256
"""Int8 logits differ by 0 to 255 steps."""


def mean_curves(
    heads: dict[str, tuple[int, int]],
    outputs: Iterable[tuple[int, NDArray[np.int8], NDArray[np.bool_], Result]],
) -> dict[str, list[float | None]]:
    """Mean output of some heads at each distance 0..255, the row's largest being 1; None where none was.

    `outputs` are (layer, logits, mask, result) as `steps.outputs` gives them.
    """
    sums, counts = ({name: np.zeros(DISTANCES) for name in heads} for _ in range(2))
    for layer, x, valid, result in outputs:
        for name, (at, head) in heads.items():
            if at == layer:
                mask = np.broadcast_to(valid, x.shape)[head]
                steps, relative = _by_distance(x[head], result.probabilities[head], mask)
                counts[name] += np.bincount(steps, minlength=DISTANCES)
                sums[name] += np.bincount(steps, relative, minlength=DISTANCES)
    return {
        name: [
            round(total / count, 5) if count else None
            for total, count in zip(sums[name].tolist(), counts[name].tolist(), strict=True)
        ]
        for name in heads
    }


def _by_distance(
    x: NDArray[np.int8], q: NDArray[np.float64], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distance from the row's maximum, and output over the row's largest, of the valid positions."""
    top = q.max(-1, keepdims=True)
    taken = valid & (top > 0)
    return distance(x, valid)[taken], (q / np.where(top > 0, top, 1.0))[taken]
