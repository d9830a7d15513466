"""The scale of every value of a float model, from unlabelled batches; padding is left out.

Two passes: the largest magnitudes, then a histogram of each value below its own. Both are additive, so they
stream over any amount of data. A scale reaches the largest magnitude, or clips where that costs the least
squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._progress import track
from hccs.errors import ParameterError
from hccs.nn.batches import call, listed
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.points import Point, points, visiting
from hccs.nn.preserving import unchanged

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("max-abs", "least-error")
BINS = 2048
CLIPS = np.linspace(0.3, 1.0, 71)
"""Shares of the largest magnitude at which a value may be clipped."""

SMALLEST = 1e-6

Look = Callable[[Point, torch.Tensor], None]


def measure(
    model: nn.Module, encoder: Encoder, batches: Sequence[Mapping[str, Any]], method: str = "max-abs"
) -> dict[str, NDArray[np.float64]]:
    """The magnitude that 127 steps of each value shall reach, by name; per head for q, k and v.

    Values of the int16 stream and what is added to it are never clipped: sixteen bits have room.
    """
    if method not in METHODS:
        raise ParameterError(f"one of {', '.join(METHODS)}", repr(method), "'max-abs' is the default.")
    batches = listed(batches)
    every = points(encoder)
    largest: dict[str, torch.Tensor] = {}

    def widen(point: Point, magnitudes: torch.Tensor) -> None:
        now = magnitudes.amax((0, 2))
        largest[point.name] = torch.maximum(largest[point.name], now) if point.name in largest else now

    _run(model, batches, every, widen, "measuring ranges")
    found = {name: np.maximum(value.double().cpu().numpy(), SMALLEST) for name, value in largest.items()}
    if method == "least-error":
        clipped = [point for point in every if not point.is_int16]
        counts = {point.name: np.zeros((len(found[point.name]), BINS)) for point in clipped}

        def count(point: Point, magnitudes: torch.Tensor) -> None:
            tops = torch.tensor(found[point.name], dtype=torch.float32, device=magnitudes.device)
            bins = (magnitudes / tops[:, None] * BINS).long().clamp_(max=BINS - 1)
            for head, rows in enumerate(bins.transpose(0, 1).flatten(1)):
                counts[point.name][head] += torch.bincount(rows, minlength=BINS).cpu().numpy()

        _run(model, batches, clipped, count, "measuring histograms")
        found.update({name: found[name] * _best_clip(counts[name]) for name in counts})
    return {p.name: found[p.name] if p.heads else found[p.name][0] for p in every}


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
    model: nn.Module, batches: Sequence[Mapping[str, Any]], chosen: list[Point], look: Look, description: str
) -> None:
    """Show `look` the magnitudes of every chosen point as [batch, heads, everything else]; 0 for padding."""
    real: torch.Tensor | None = None

    def visit(point: Point, value: torch.Tensor) -> None:
        magnitudes = value.detach().abs().float()
        if real is not None and value.ndim == 3:
            magnitudes = magnitudes * real.to(value.device)[..., None]
        look(point, magnitudes.unflatten(-1, (point.heads or 1, -1)).movedim(-2, 1).flatten(2))

    with unchanged(model), torch.no_grad(), visiting(chosen, visit):
        model.eval()
        for batch in track(batches, total=len(batches), description=description):
            real = batch["attention_mask"].bool() if "attention_mask" in batch else None
            call(model, batch)
