"""Choosing scales: by the model's own output, and two steps for layers with outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._progress import track
from hccs.calibration.ranges import METHODS as OF_RANGES
from hccs.calibration.ranges import ValueRanges
from hccs.nn.batches import call
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.points import points
from hccs.nn.lowering.pre_norm import PreNorm
from hccs.nn.lowering.quantised import quantised
from hccs.nn.lowering.ranges import magnitudes
from hccs.nn.lowering.scales import Scales, choose_scales
from hccs.nn.preserving import unchanged
from hccs.numbers.table import ParamTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Magnitudes = dict[str, NDArray[np.float64]]
    Apart = tuple[dict[int, NDArray[np.int64]], Magnitudes]

BY_OUTPUT = "by-output"
METHODS = (*OF_RANGES, BY_OUTPUT)

EXAMPLES = 256
"""How many the answers are compared on: two alternatives of every value need no more."""

MOST, SHARE = 64, 16
"""At most 64 channels, and one in 16, are cut off: more are no outliers."""

GAIN = 10 ** (6 / 10)
"""By how much the noise must fall for a cut: 6 dB, one bit; less is not worth the operators."""


def by_output(
    model: nn.Module,
    parts: Encoder | PreNorm,
    table: ParamTable,
    ranges: ValueRanges,
    batches: Sequence[Mapping[str, Any]],
    apart: Apart = ({}, {}),
) -> Scales:
    """Start from the better method as a whole, then let each value change over if that helps.

    What is compared is the mean squared difference of logits, in one pass over the values of the model.
    """
    batches = last_examples(batches, EXAMPLES)
    expected = answers(model, batches)

    def cost(chosen: Magnitudes) -> float:
        with quantised(model, parts, table, replace(choose_scales(parts, chosen), outliers=apart[0])):
            return distance(answers(model, batches), expected, batches)

    every = {method: {**magnitudes(parts, ranges, method), **apart[1]} for method in OF_RANGES}
    costs = {method: cost(every[method]) for method in OF_RANGES}
    start = min(costs, key=costs.__getitem__)
    best, lowest = every[start], costs[start]
    (other,) = (method for method in OF_RANGES if method != start)
    names = ["stream"] if "stream" in best else []
    names += [point.name for point in points(parts) if not point.is_int16]
    for name in track(names, total=len(names), description="choosing scales"):
        if np.array_equal(best[name], every[other][name]):
            continue
        changed = {**best, name: every[other][name]}
        now = cost(changed)
        if now < lowest:
            best, lowest = changed, now
    return replace(choose_scales(parts, best), outliers=apart[0])


def last_examples(batches: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in reversed(batches):
        rows = min(count, len(next(v for v in batch.values() if torch.is_tensor(v))))
        found.append({name: v[:rows] if torch.is_tensor(v) else v for name, v in batch.items()})
        count -= rows
        if count <= 0:
            break
    return found


def answers(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    with unchanged(model), torch.no_grad():
        model.eval()
        return [call(model, batch).logits.float() for batch in batches]


def distance(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], batches: Sequence[Mapping[str, Any]]
) -> float:
    """The mean squared difference of logits; where tokens have some, those of padding are left out."""
    total, count = 0.0, 0
    for now, real, batch in zip(found, expected, batches, strict=True):
        squares = (now - real).square().mean(-1)
        if squares.ndim == 2 and "attention_mask" in batch:
            squares = squares[batch["attention_mask"].bool().to(squares.device)]
        total, count = total + float(squares.sum()), count + squares.numel()
    return total / max(count, 1)


def outliers(largest: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """The channels to cut off, in order, where two steps instead of one lower the noise of rounding enough.

    An activation's output has one int8 step, and one channel that reaches five times as far as the rest costs
    all of them 14 dB. No scale can be moved between the weights around a GELU as it can around a ReLU; but
    the layer can be cut: these channels go through a linear layer, a table and a linear layer of their own,
    and the two parts are added. The products are the same ones.

    >>> largest = np.linspace(1, 2, 48, dtype=np.float32)
    >>> outliers(largest) is None
    True
    >>> largest[[7, 30]] = 25, 6
    >>> outliers(largest).tolist()
    [7, 30]
    """
    order = np.argsort(-largest, kind="stable")
    reach = largest[order].astype(np.float64)
    most = min(MOST, len(reach) // SHARE)
    cuts = np.arange(most + 1)
    noise = cuts * reach[0] ** 2 + (len(reach) - cuts) * reach[: most + 1] ** 2
    best = int(np.argmin(noise))
    return np.sort(order[:best]) if noise[0] > GAIN * noise[best] else None


def cut_ranges(
    ranges: ValueRanges, layers: int
) -> tuple[dict[int, NDArray[np.int64]], dict[str, NDArray[np.float64]]]:
    """The channels to cut off per layer, and the magnitudes that the parts' steps shall reach."""
    cut: dict[int, NDArray[np.int64]] = {}
    reach: dict[str, NDArray[np.float64]] = {}
    for i in range(layers):
        found = outliers(ranges.values[f"active{i}"].largest)
        if found is None:
            continue
        cut[i] = found
        for name in ("wide", "active"):
            largest = ranges.values[f"{name}{i}"].largest
            rest = np.delete(largest, found)
            reach[f"{name}{i}"] = np.float64(max(float(rest.max()), 1e-6))
            reach[f"{name}{i}_few"] = np.float64(max(float(largest[found].max()), 1e-6))
    return cut, reach
