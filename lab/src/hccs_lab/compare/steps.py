"""The steps of one method: parameters, fidelity and costs on rows; accuracy in the model; time."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hccs.nn.attaching import fill
from hccs.nn.slots import FloatSoftmax
from hccs_lab import surrogates
from hccs_lab.compare.entries import FLOAT, Entry, declared_costs
from hccs_lab.compare.measures import FidelityCounter, row_measures
from hccs_lab.compare.source import LogitSample
from hccs_lab.surrogates import Result
from hccs_lab.surrogates.fitting import float_softmax
from hccs_lab.surrogates.surrogate import Surrogate

Parameters = dict[str, Any]
"""A method's parameters as JSON holds them: a number for every [layer][head], or one word for all."""


def fitted(name: str, calibration: LogitSample, width: int) -> dict[str, Any]:
    """What a method's own calibration finds on the common rows; `width` is that of the model's heads."""
    method = surrogates.get(name)
    found = method.calibrate(calibration.logits, calibration.scale, calibration.valid)
    if method.attends is not None:
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
    return counter.result()


def costs(entry: Entry, k: int) -> dict[str, Any]:
    declared = declared_costs(entry)
    counts = {name: getattr(declared, name)(k) for name in ("operations", "divides", "exponentials")}
    told = ("input", "output", "bits_inside", "table_bytes", "integer_only", "source")
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


ROWS = 2048
"""Rows of each head of the layer that is timed."""

SECONDS = 0.4
"""Time given to each pair of forms; at least `LEAST` repetitions are made."""

LEAST = 5


def time_forms(method: Surrogate, sample: LogitSample, parameters: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of both forms on one layer's logits, and their ratios to softmax in NumPy and PyTorch.

    The peers are the float64 softmax of the registry and torch.softmax in float32 with the same mask;
    a method and its peer take turns, and the ratio is the median over turns.
    """
    x, valid, scale = sample.logits[0][:, :ROWS], sample.valid[0][:, :ROWS], sample.scale[0]
    softmax = surrogates.get("softmax")
    numpy_ms, numpy_ratio = _turns(
        lambda: method(x, scale, valid, **parameters), lambda: softmax(x, scale, valid)
    )
    z = torch.tensor(x[None] * scale[:, None, None], dtype=torch.float32)
    mask = torch.tensor(valid)[None]
    module, peer = method.module(scale, parameters).eval(), FloatSoftmax()
    with torch.no_grad():
        torch_ms, torch_ratio = _turns(lambda: module(z, mask), lambda: peer(z, mask))
    return {"numpy_ms": numpy_ms, "numpy": numpy_ratio, "torch_ms": torch_ms, "torch": torch_ratio}


def _turns(work: Callable[[], Any], peer: Callable[[], Any]) -> tuple[float, float]:
    """Median milliseconds of `work`, and its median ratio to `peer` when they take turns."""
    work(), peer()
    times: list[float] = []
    ratios: list[float] = []
    began = time.perf_counter()
    while len(times) < LEAST or time.perf_counter() - began < SECONDS:
        mine, theirs = _seconds(work), _seconds(peer)
        times.append(1e3 * mine)
        ratios.append(mine / theirs)
    return statistics.median(times), statistics.median(ratios)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
