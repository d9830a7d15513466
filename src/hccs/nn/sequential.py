"""Calibrating layer by layer, each on activations that went through the HCCS of the layers before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from hccs.calibration import HeadStatistics, search
from hccs.errors import ModelError
from hccs.nn.batches import listed, unwrapped
from hccs.nn.collecting import StatisticsObserver, observing, ranges, run
from hccs.nn.interface import SLOT, attention_layers
from hccs.nn.layers import FloatSoftmax, HeadSoftmax
from hccs.nn.slots import AttentionSlot
from hccs.numbers.heads import NAMES, ONE_LINE
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable


def calibrate_in_sequence(
    model: nn.Module,
    batches: Sequence[Any],
    *,
    n: int,
    granularity: str = "head",
    mode: Mode | str = "i16_div",
    lines: int = 1,
    scores: str = "int16",
) -> ParamTable:
    """The table of a float model, where each layer is fitted after the converted ones.

    Runs the model once per layer over `batches` and leaves it as it was. `lines` and `scores` are those of
    `hccs.calibration.search`. Granularity "global" has no order of layers and is refused.
    """
    model = unwrapped(model)
    batches = listed(batches)
    if granularity == "global":
        raise ModelError(
            "granularity 'head' or 'layer' in sequence",
            "'global'",
            "One triple for all layers has no first layer.",
        )
    if any(hasattr(module, SLOT) for module in attention_layers(model).values()):
        raise ModelError("a float model", "one with HCCS attached", "Call hccs.nn.detach first.")
    tables: list[ParamTable] = []
    done: dict[str, AttentionSlot] = {}
    names = list(attention_layers(model))
    for name in names:
        stats = _one_layer(model, batches, name, done, n)
        tables.append(search(stats, n, granularity, mode, lines=lines, scores=scores).table)
        done[name] = HeadSoftmax(tables[-1], 0, Mode(mode))
    theta = NAMES if lines > 1 else NAMES[:ONE_LINE]
    joined: dict[str, Any] = {
        part: np.concatenate([getattr(table, part) for table in tables])
        for part in (*theta, "scale", "qkv_scale")
    }
    return ParamTable(**joined, n=n, mode=mode, layers=names, provenance={"calibration": "in sequence"})


def _one_layer(
    model: nn.Module, batches: Sequence[Any], name: str, done: dict[str, AttentionSlot], n: int
) -> HeadStatistics:
    before = {earlier: (lambda inner, slot=slot: slot) for earlier, slot in done.items()}
    with observing(model, before):
        seen = ranges(model, batches)
        index = seen.layers.index(name)
        scale = seen.logit_scale[index : index + 1]
        operands = seen.qkv_scale[index : index + 1]
        stats = HeadStatistics(shape=scale.shape, n=n, scale=scale, layers=[name], qkv_scale=operands)
        watch = {name: lambda inner: StatisticsObserver(FloatSoftmax(), stats, 0)}
        with observing(model, watch):
            run(model, batches, f"collecting {name}")
    return stats
