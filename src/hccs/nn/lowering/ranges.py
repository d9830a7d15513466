"""The range of every value of a float model, from unlabelled batches, in one pass; padding is left out.

What is counted are integers: the order of batches changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs._progress import track
from hccs.errors import DataError, ParameterError
from hccs.nn.attaching import unchanged
from hccs.nn.batches import call, require_batches, require_some
from hccs.nn.lowering.parts import PostNorm, PreNorm
from hccs.nn.lowering.points import Point, points, visiting

METHODS = ("max-abs", "least-error")

BINS_PER_OCTAVE = 64
SMALLEST_POWER, LARGEST_POWER = -26, 22
BINS = (LARGEST_POWER - SMALLEST_POWER) * BINS_PER_OCTAVE
"""A magnitude's bin is its float32 exponent and the six highest bits of its mantissa: the same on any data,
so that counts of different data add up. The first bin also takes all that is smaller."""

CLIPS = np.geomspace(0.05, 1.0, 120)
"""Shares of the largest magnitude at which a value may be clipped."""

REACHES = 2.0 ** (np.arange(-16, 41) / 2)
"""How far an int16 stream may reach, when the error of that is measured."""

ERROR_UNIT, INVERSE_UNIT = 2.0**-24, 2.0**-10
"""Errors of the stream and inverse variances are counted in these, so that their sums are exact."""

SMALLEST = 1e-6


@dataclass(eq=False)
class ValueRange:
    """The largest magnitude of each channel of a value, and counts of magnitudes per head and bin."""

    largest: NDArray[np.float32]
    counts: NDArray[np.int64]
    """[heads, BINS], or [heads, 0] where nobody counted."""

    @property
    def reach(self) -> NDArray[np.float64]:
        per_head = self.largest.reshape(len(self.counts), -1).max(1)
        reach: NDArray[np.float64] = np.maximum(per_head.astype(np.float64), SMALLEST)
        return reach

    @property
    def least_error(self) -> NDArray[np.float64]:
        """Where clipping and rounding to int8 together cost the least squared error, per head."""
        return np.array([_best_clip(*pair) for pair in zip(self.reach.tolist(), self.counts, strict=True)])


@dataclass(eq=False)
class StreamErrors:
    """What LayerNorm would see of an int16 stream that reaches less far than the stream itself."""

    clipped: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(REACHES)))
    """Per entry of REACHES, the summed relative error of normalised tokens, in ERROR_UNIT; or infinite."""
    inverse_variance: float = 0.0
    """The sum over tokens, in INVERSE_UNIT: rounding to steps costs a token step^2 / 12 times its own."""

    def best(self, largest: float, roundings: int) -> float:
        """The reach of least error, given how often a token of the stream is rounded on average."""
        reaches = np.append(REACHES[largest > REACHES], largest)
        clipped = np.append(self.clipped[largest > REACHES], 0.0)
        rounded = (reaches / 32767) ** 2 / 12 * roundings * self.inverse_variance
        return float(reaches[np.argmin(clipped * ERROR_UNIT + rounded * INVERSE_UNIT)])


@dataclass(eq=False)
class ValueRanges:
    """The ranges of every value of a model, by name, and the errors of its stream where that is int16."""

    values: dict[str, ValueRange]
    stream: StreamErrors | None = None
    layers: int = 0
    """The number of layers that add to an int16 stream."""

    def magnitudes(self, method: str = "max-abs") -> dict[str, NDArray[np.float64]]:
        """The magnitude that the steps of each value shall reach, one per head; "stream" is the stream's."""
        if method not in METHODS:
            raise ParameterError(f"one of {', '.join(METHODS)}", repr(method), "'max-abs' is the default.")
        least = method == "least-error"
        found = {
            name: value.least_error if least and value.counts.size else value.reach
            for name, value in self.values.items()
        }
        if self.stream is not None:
            largest = max(float(v.reach.max()) for n, v in self.values.items() if is_stream(n))
            clips = least and self.stream.inverse_variance > 0
            found["stream"] = np.array([self.stream.best(largest, self.layers + 1) if clips else largest])
        return found


def is_stream(name: str) -> bool:
    """Whether a value of a pre-norm model lies in its residual stream, or is added to it."""
    return name.endswith("_part") or (name[:1] in ("x", "y") and name[1:].isdigit())


def _middles() -> NDArray[np.float64]:
    octave, part = np.divmod(np.arange(BINS), BINS_PER_OCTAVE)
    middles: NDArray[np.float64] = 2.0 ** (SMALLEST_POWER + octave) * (1 + (part + 0.5) / BINS_PER_OCTAVE)
    middles[0] = 0.0
    return middles


MIDDLES = _middles()


def _best_clip(largest: float, counts: NDArray[np.int64]) -> float:
    clips = largest * CLIPS
    used = counts > 0
    middle, weight = MIDDLES[used], counts[used].astype(np.float64)
    step = clips[:, None] / 127
    # A value below half a step becomes 0; others spread evenly over the step they are rounded to.
    inside = np.where(middle < step / 2, middle**2, step**2 / 12)
    error = np.where(middle <= clips[:, None], inside, (middle - clips[:, None]) ** 2)
    return float(clips[np.argmin(error @ weight)])


TYPICAL = 4.0
"""A stream that reaches less than this many times a typical value is not worth measuring."""


def magnitudes(
    encoder: PostNorm | PreNorm, ranges: ValueRanges, method: str = "max-abs"
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
    model: nn.Module, encoder: PostNorm | PreNorm, batches: Iterable[Any], *, counted: bool = True
) -> ValueRanges:
    """The ranges of a model's values; where they shall not clip, `counted` can be left out."""
    require_batches(batches)
    pre_norm = isinstance(encoder, PreNorm)
    found = ValueRanges({}, StreamErrors() if pre_norm else None, len(encoder.layers) if pre_norm else 0)
    streams = encoder.streams if isinstance(encoder, PreNorm) else ()
    readers = {name: norm for name, norm in streams if isinstance(norm, nn.LayerNorm)}
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
