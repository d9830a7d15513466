"""Where accuracy goes: how far every value of an integer program is from the float model's, in decibels."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs.executors.numpy import run
from hccs.nn.batches import call
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.points import Point, points, visiting
from hccs.nn.lowering.pre_norm import Patches, PreNorm
from hccs.nn.lowering.scales import Scales
from hccs.nn.preserving import unchanged
from hccs.program import Program
from hccs.program.operators import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Noise:
    """A value beside the float model's: 10 log10 of the signal's power over that of the difference."""

    name: str
    decibels: float


def measure_noise(
    model: nn.Module,
    encoder: Encoder | PreNorm,
    program: Program,
    scales: Scales,
    batches: Sequence[Mapping[str, Any]],
) -> list[Noise]:
    """The signal-to-noise ratio at every rounding point, in the program's order, over all tokens."""
    powers: dict[str, NDArray[np.float64]] = {}
    every = points(encoder)
    for batch in batches:
        given = program_inputs(encoder, batch)
        integers: dict[str, NDArray[Any]] = {}
        run(program, given, watch=integers.__setitem__)
        for i in range(len(encoder.layers)):
            for name, part in zip(
                ("query", "key", "value"), np.split(integers[f"qkv{i}"], 3, -1), strict=True
            ):
                integers[f"{name}{i}"] = part
            if i in scales.outliers:
                for name in ("wide", "active"):
                    integers[f"{name}{i}"] = _joined(integers, f"{name}{i}", scales.outliers[i])
        for point, real in _float_values(model, every, batch):
            whole = integers[point.name]
            steps = _steps(point, scales, whole.shape[-1])
            if real.ndim == 2:  # the head sees the first token alone
                whole = whole[:, 0] if whole.ndim == 3 else whole
            else:
                mask = np.arange(real.shape[1]) < given.lengths[:, None]
                real, whole = real[mask], whole[mask]
            difference = real - whole * steps
            now = np.array([(real**2).sum(), (difference**2).sum()])
            powers[point.name] = powers.get(point.name, 0) + now
    return [Noise(p.name, _decibels(*powers[p.name].tolist())) for p in every]


def _joined(integers: Mapping[str, NDArray[Any]], name: str, outliers: NDArray[np.int64]) -> NDArray[Any]:
    """The channels of a value that a program computes in two parts, in the float model's order."""
    rest, apart = integers[name], integers[f"{name}_few"]
    width = rest.shape[-1] + apart.shape[-1]
    whole = np.empty((*rest.shape[:-1], width), rest.dtype)
    whole[..., np.delete(np.arange(width), outliers)], whole[..., outliers] = rest, apart
    return whole


def _steps(point: Point, scales: Scales, width: int) -> NDArray[np.float64]:
    if point.heads:
        return np.repeat(scales.steps[point.name], width // point.heads)
    found = re.fullmatch(r"(wide|active)(\d+)", point.name)
    if found:
        return scales.of_channels(found[1], int(found[2]), width)
    return np.asarray(scales.steps[point.name])


def program_inputs(encoder: Encoder | PreNorm, batch: Mapping[str, Any]) -> Batch:
    """A batch of the float model as its program takes it: ids or images, lengths, types."""
    if isinstance(encoder, PreNorm) and isinstance(encoder.source, Patches):
        images = encoder.source.pixels.as_integers(batch["pixel_values"]).cpu().numpy().astype(np.uint8)
        lengths = np.full(len(images), encoder.source.positions.shape[1])
        return Batch(images, lengths, np.zeros((0, 0), np.int64))
    tokens = batch["input_ids"].cpu().numpy()
    mask = batch["attention_mask"].cpu().numpy() if "attention_mask" in batch else np.ones_like(tokens)
    types = batch["token_type_ids"].cpu().numpy() if "token_type_ids" in batch else np.zeros_like(tokens)
    return Batch(tokens, mask.sum(1), types)


def _float_values(
    model: nn.Module, every: list[Point], batch: Mapping[str, Any]
) -> list[tuple[Point, NDArray[np.float64]]]:
    seen: dict[str, tuple[Point, NDArray[np.float64]]] = {}

    def look(point: Point, value: torch.Tensor) -> None:
        seen[point.name] = (point, value.detach().double().cpu().numpy())

    with unchanged(model), torch.no_grad(), visiting(every, look):
        call(model.eval(), batch)
    return list(seen.values())


def _decibels(signal: float, noise: float) -> float:
    return 10 * math.log10(signal / noise) if noise > 0 and signal > 0 else math.inf
