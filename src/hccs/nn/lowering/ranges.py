"""The scale of every value of a float model, from unlabelled batches; padding is left out.

Two passes: the largest magnitudes, then a histogram of each value below its own. Both are additive, so they
stream over any amount of data. A scale reaches the largest magnitude, or clips where that costs the least
squared error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._progress import track
from hccs.errors import DataError, ParameterError
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.points import Point, Visit, points, visiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("max-abs", "least-error")
BINS = 2048
CLIPS = np.linspace(0.3, 1.0, 71)
"""Shares of the largest magnitude at which a value may be clipped."""

SMALLEST = 1e-6


def measure(
    model: nn.Module, encoder: Encoder, batches: Sequence[Mapping[str, Any]], method: str = "max-abs"
) -> dict[str, NDArray[np.float64]]:
    """The magnitude that 127 steps of each value shall reach, by name; per head for q, k and v.

    Values of the int16 stream and what is added to it are never clipped: sixteen bits have room.
    """
    if method not in METHODS:
        raise ParameterError(f"one of {', '.join(METHODS)}", repr(method), "'max-abs' is the default.")
    if not batches:
        raise DataError("at least one batch", "none", "Pass batches of tokenised text.")
    every = points(encoder)
    largest: dict[str, torch.Tensor] = {}

    def widen(point: Point, magnitudes: torch.Tensor) -> None:
        now = magnitudes.amax((0, 2))
        largest[point.name] = torch.maximum(largest[point.name], now) if point.name in largest else now

    _run(model, batches, every, widen, "measuring ranges")
    found = {name: np.maximum(value.double().cpu().numpy(), SMALLEST) for name, value in largest.items()}
    if method == "least-error":
        clipped = [point for point in every if _is_int8(point)]
        counts = {point.name: np.zeros((len(found[point.name]), BINS)) for point in clipped}

        def count(point: Point, magnitudes: torch.Tensor) -> None:
            tops = torch.tensor(found[point.name], dtype=torch.float32, device=magnitudes.device)
            bins = (magnitudes / tops[:, None] * BINS).long().clamp_(max=BINS - 1)
            for head, rows in enumerate(bins.transpose(0, 1).flatten(1)):
                counts[point.name][head] += torch.bincount(rows, minlength=BINS).cpu().numpy()

        _run(model, batches, clipped, count, "measuring histograms")
        found.update({name: found[name] * _best_clip(counts[name]) for name in counts})
    return {p.name: found[p.name] if p.heads else found[p.name][0] for p in every}


def _is_int8(point: Point) -> bool:
    return not point.name.endswith("_part") and (point.name[0] not in "xy" or point.name.endswith("_int8"))


def _best_clip(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per row of counts, the share at which clipping and rounding together cost the least squared error."""
    middle = (np.arange(BINS) + 0.5) / BINS
    errors = []
    for clip in CLIPS:
        step = clip / 127
        rounded = np.minimum(np.rint(middle / step), 127) * step
        # Inside a bin values spread evenly: rounding them costs step^2 / 12 where a step is wider than a bin.
        inside = np.maximum((middle - rounded) ** 2, np.where(middle < clip, step**2 / 12, 0))
        errors.append(counts[:, 1:] @ inside[1:])  # the first bin is mostly exact zeros, padding among them
    best: NDArray[np.float64] = CLIPS[np.argmin(errors, axis=0)]
    return best


def _run(
    model: nn.Module, batches: Sequence[Mapping[str, Any]], chosen: list[Point], look: Any, description: str
) -> None:
    device, was_training, real = next(model.parameters()).device, model.training, None

    def visit(point: Point, value: torch.Tensor) -> None:
        """Magnitudes as [batch, heads, everything else]; those of padding are 0."""
        magnitudes = value.detach().abs().float()
        if real is not None and value.ndim == 3:
            magnitudes = magnitudes * real[..., None]
        heads = point.heads or 1
        look(point, magnitudes.unflatten(-1, (heads, -1)).movedim(-2, 1).flatten(2))

    model.eval()
    try:
        with torch.no_grad(), visiting(chosen, _as_visit(visit)):
            for batch in track(batches, total=len(batches), description=description):
                inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
                mask = inputs.get("attention_mask")
                real = None if mask is None else mask.bool()
                model(**inputs)
    finally:
        model.train(was_training)


def _as_visit(look: Any) -> Visit:
    def visit(point: Point, value: torch.Tensor) -> None:
        look(point, value)

    return visit
