"""How long the NumPy and the PyTorch form of a method take, as ratios to softmax in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hccs.nn.layers import FloatSoftmax
from hccs_lab import surrogates
from hccs_lab.compare.sample import LogitSample
from hccs_lab.surrogates.surrogate import Surrogate

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
