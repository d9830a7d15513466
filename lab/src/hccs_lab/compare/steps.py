"""The steps of one method: its parameters, fidelity and costs on rows; its accuracy in the model."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.conversion.models import accuracy
from hccs.conversion.training import train
from hccs.nn.attaching import fill
from hccs_lab import surrogates
from hccs_lab.compare import curves as drawing
from hccs_lab.compare.entries import FLOAT, Entry, declared_costs
from hccs_lab.compare.measures import FidelityCounter, row_measures
from hccs_lab.compare.sample import LogitSample
from hccs_lab.compare.source import FileSource, ModelSource
from hccs_lab.surrogates.fitting import float_softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """The parameters of one layer's heads; words serve all."""
    return {
        name: value if isinstance(value, str) else np.asarray(value[layer])
        for name, value in parameters.items()
    }


def outputs(
    entry: Entry, parameters: Parameters, sample: LogitSample, layers: Container[int]
) -> Iterator[tuple[int, NDArray[np.int8], NDArray[np.bool_], surrogates.Result]]:
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
    """The score curves of the heads that are drawn."""
    heads = drawing.drawn_heads(sample.scale)
    layers = {layer for layer, _ in heads.values()}
    return drawing.mean_curves(heads, outputs(entry, parameters, sample, layers))


def costs(entry: Entry, k: int) -> dict[str, Any]:
    """What the method declares for a row of k columns."""
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
    """A copy of the model with the method in every layer."""
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
    """The accuracy of the float weights with the method."""
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
