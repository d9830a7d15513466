"""The range of every value of a float model, from unlabelled batches, in one pass; padding is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._progress import track
from hccs.calibration.ranges import (
    BINS,
    BINS_PER_OCTAVE,
    ERROR_UNIT,
    INVERSE_UNIT,
    REACHES,
    SMALLEST_POWER,
    StreamErrors,
    ValueRange,
    ValueRanges,
)
from hccs.errors import DataError
from hccs.nn.batches import call, require_batches, require_some
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.points import Point, points, visiting
from hccs.nn.lowering.pre_norm import PreNorm
from hccs.nn.preserving import unchanged

if TYPE_CHECKING:
    from numpy.typing import NDArray

TYPICAL = 4.0
"""A stream that reaches less than this many times a typical value is not worth measuring."""


def magnitudes(
    encoder: Encoder | PreNorm, ranges: ValueRanges, method: str = "max-abs"
) -> dict[str, NDArray[np.float64]]:
    """The magnitude that 127 steps of each value shall reach, by name; one number where a value has one step.

    Values of an int16 stream and what is added to it are never clipped, unless the stream goes on without a
    LayerNorm: `StreamErrors` says what clipping costs there.
    """
    every, found = points(encoder), ranges.magnitudes(method)
    missing = [p.name for p in every if p.name not in found or len(found[p.name]) != (p.heads or 1)]
    if missing:
        raise DataError(
            "ranges of this model's values",
            f"others: {', '.join(missing[:3])} missing",
            "Measure them on this model.",
        )
    chosen = {p.name: found[p.name] if p.heads else found[p.name][0] for p in every}
    return {**chosen, "stream": found["stream"][0]} if "stream" in found else chosen


def measured(
    model: nn.Module, encoder: Encoder | PreNorm, batches: Iterable[Any], *, counted: bool = True
) -> ValueRanges:
    """The ranges of a model's values; where they shall not clip, `counted` can be left out."""
    require_batches(batches)
    pre_norm = isinstance(encoder, PreNorm)
    found = ValueRanges({}, StreamErrors() if pre_norm else None, len(encoder.layers) if pre_norm else 0)
    readers = {name: norm for name, norm in encoder.streams} if isinstance(encoder, PreNorm) else {}
    every, real, ran = points(encoder), None, 0

    def visit(point: Point, value: torch.Tensor) -> None:
        rows = value.detach().float()
        rows = rows[real.to(rows.device)] if real is not None and value.ndim == 3 else rows.flatten(0, -2)
        now = _range(point, rows.abs(), counted and not point.is_int16)
        if point.name in found.values:
            now.largest = np.maximum(now.largest, found.values[point.name].largest)
            now.counts = now.counts + found.values[point.name].counts
        found.values[point.name] = now
        if found.stream is not None and point.name in readers and counted:
            _add_stream_errors(found.stream, rows, readers[point.name].eps)

    with unchanged(model), torch.no_grad(), visiting(every, visit):
        model.eval()
        total = len(batches) if isinstance(batches, Sized) else None
        for batch in track(batches, total=total, description="measuring ranges"):
            mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
            real = None if mask is None else mask.bool()
            call(model, batch)
            ran += 1
    require_some(range(ran))
    return found


def _range(point: Point, magnitudes: torch.Tensor, counted: bool) -> ValueRange:
    heads, width = point.heads or 1, magnitudes.shape[-1]
    largest = magnitudes.amax(0).cpu().numpy() if len(magnitudes) else np.zeros(width, np.float32)
    if not np.isfinite(largest).all():
        raise DataError(
            "finite values everywhere",
            f"NaN or infinity at {point.name}",
            "The model is damaged, or training diverged.",
        )
    counts = np.zeros((heads, BINS if counted else 0), np.int64)
    if counted and len(magnitudes):
        codes = magnitudes.contiguous().view(torch.int32) >> 17
        codes = (codes - (127 + SMALLEST_POWER) * BINS_PER_OCTAVE).clamp_(0, BINS - 1)
        if heads > 1:
            first = torch.arange(heads, device=codes.device, dtype=codes.dtype) * BINS
            codes = codes + first.repeat_interleave(width // heads)
        counts += torch.bincount(codes.flatten(), minlength=heads * BINS).view(heads, BINS).cpu().numpy()
    return ValueRange(largest, counts)


def _add_stream_errors(errors: StreamErrors, rows: torch.Tensor, eps: float) -> None:
    """What clipping the tokens of a stream changes after LayerNorm, relative to a normalised token."""
    width = rows.shape[-1]
    normed = nn.functional.layer_norm(rows, (width,), eps=eps)
    largest, typical = float(rows.abs().amax()), float(rows.square().mean(-1).sqrt().median())
    errors.tokens += len(rows)
    inverse = 1 / (rows.var(-1, unbiased=False).double() + eps)
    errors.inverse_variance += float((inverse / INVERSE_UNIT).round().sum())
    for index, reach in enumerate(REACHES.tolist()):
        if reach >= largest:
            break
        if reach < TYPICAL * typical:
            errors.clipped[index] = np.inf
            continue
        clipped = nn.functional.layer_norm(rows.clamp(-reach, reach), (width,), eps=eps)
        error = (clipped - normed).square().mean(-1).double()
        errors.clipped[index] += float((error / ERROR_UNIT).round().sum())
