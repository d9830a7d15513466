"""Real int8 logits with their masks: a bounded sample of rows of a model, or of files of logits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs._files import safetensors
from hccs._progress import track
from hccs.calibration.files import LogitFile, hold_int8, int8_scale, open_model
from hccs.calibration.rows import require_finite, row_batch
from hccs.calibration.scale import LogitRange, quantise
from hccs.errors import DataError, FileError, ParameterError
from hccs.nn.collecting import observing, ranges, real_rows, run
from hccs.nn.functional import quantise as quantise_tensor
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

PIECE = 1 << 21
"""Logits of a head's rows that are worked on at once."""


@dataclass(frozen=True)
class LogitSample:
    """Rows of int8 logits [layers, heads, rows, k], their mask and their scale [layers, heads].

    The mask `valid` is [layers, 1, rows, k], or [layers, heads, rows, k] where heads differ. `layers` names
    the attention layers they came from; it is empty when they came from a file.
    """

    logits: NDArray[np.int8]
    valid: NDArray[np.bool_]
    scale: NDArray[np.float64]
    layers: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return self.logits.shape[0], self.logits.shape[1]

    @property
    def rows(self) -> int:
        return self.logits.shape[2]

    def take(self, rows: NDArray[np.int64]) -> LogitSample:
        return LogitSample(self.logits[:, :, rows], self.valid[:, :, rows], self.scale, self.layers)

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """(layer, rows) of parts small enough to hold several float64 copies of."""
        step = max(1, PIECE // max(1, self.logits.shape[1] * self.logits.shape[3]))
        for layer in range(self.logits.shape[0]):
            for first in range(0, self.rows, step):
                yield layer, slice(first, first + step)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `hccs calibrate` and `hccs compare` read."""
        arrays = {"logits": self.logits, "valid": self.valid, "scale": self.scale}
        safetensors.write(path, arrays, {"layers": "\n".join(self.layers)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LogitSample:
        arrays, metadata = safetensors.read(path)
        names = tuple(metadata.get("layers", "").split("\n")) if metadata.get("layers") else ()
        try:
            return cls(arrays["logits"], arrays["valid"].astype(bool), arrays["scale"], names)
        except (KeyError, IndexError) as error:
            raise FileError(
                f"{path} to be a sample of logits", repr(error), "Delete it to collect it once more."
            ) from error


class RowSampler(Observer):
    """Keeps, quantised, a few rows of every batch."""

    def __init__(self, inner: AttentionSlot, scale: NDArray[np.float64], per_batch: int, seed: int) -> None:
        super().__init__(inner)
        self.per_batch, self.seed = per_batch, seed
        self.scale = torch.tensor(scale, dtype=torch.float32)
        self.kept: list[tuple[NDArray[np.int8], NDArray[np.bool_]]] = []

    def observe(self, inputs: AttentionInputs) -> None:
        z = inputs.logits
        rows = real_rows(z, inputs.valid)
        full = torch.ones_like(z, dtype=torch.bool) if rows is None else rows.expand(z.shape)
        by_row = full[:, 0].reshape(-1, z.shape[-1])
        real = by_row.any(-1).nonzero()[:, 0].cpu().numpy()
        # The batch's number seeds the draw, so that every layer keeps the same rows.
        chosen = torch.as_tensor(real[draw(len(real), (self.seed, len(self.kept)), self.per_batch)])
        chosen = chosen.to(z.device)
        x = quantise_tensor(z.detach(), self.scale.to(z.device))
        x = x.transpose(0, 1).reshape(z.shape[1], -1, z.shape[-1])[:, chosen]
        self.kept.append((x.cpu().numpy(), by_row[chosen].cpu().numpy()))


def sample_model(
    model: nn.Module,
    batches: Sequence[Any],
    *,
    n: int,
    rows: int,
    seed: int = 0,
    scale: NDArray[np.float64] | None = None,
) -> LogitSample:
    """At most `rows` rows of every head, `n` columns wide, spread over all batches and drawn by `seed`.

    The same sentences and queries serve all layers. Padding counts neither as key nor as query. Scales are
    those of `hccs.nn.collect`, the largest magnitude / 127, unless given.
    """
    if not batches:
        raise DataError("at least one batch", "none", "Pass a list of batches of tokenised text.")
    require_rows(rows)
    seen = ranges(model, batches)
    names, scale = seen.layers, seen.logit_scale if scale is None else scale
    samplers: dict[str, RowSampler] = {}

    def observer(name: str, layer: int) -> Callable[[AttentionSlot], AttentionSlot]:
        def make(inner: AttentionSlot) -> AttentionSlot:
            samplers[name] = RowSampler(inner, scale[layer], -(-rows // len(batches)), seed)
            return samplers[name]

        return make

    with observing(model, {name: observer(name, layer) for layer, name in enumerate(names)}):
        run(model, batches, "collecting logits")
    parts = [joined([padded(*part, n) for part in samplers[name].kept], -2) for name in names]
    logits, valid = (np.stack(arrays) for arrays in zip(*parts, strict=True))
    sample = LogitSample(logits, valid[:, None], scale, tuple(names))
    return sample if sample.rows <= rows else sample.take(draw(sample.rows, (seed,), rows))


def draw(count: int, seed: tuple[int, ...], most: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def padded(
    x: NDArray[np.int8], valid: NDArray[np.bool_], columns: int
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Rows and their mask, made `columns` wide by columns that take no part."""

    def wide(a: NDArray[Any]) -> NDArray[Any]:
        return np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, columns - a.shape[-1])])

    return wide(x), wide(valid)


def joined(
    parts: Sequence[tuple[NDArray[np.int8], NDArray[np.bool_]]], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    x, valid = zip(*parts, strict=True)
    return np.concatenate(x, axis), np.concatenate(valid, axis)


def require_rows(rows: int) -> None:
    if rows < 2:
        raise ParameterError("at least two rows to compare on", str(rows), "2048 per head are plenty.")


def sample_files(
    paths: Sequence[str | os.PathLike[str]], *, rows: int, seed: int = 0, scale: float | None = None
) -> tuple[LogitSample, LogitSample]:
    """(rows to calibrate on, rows to measure on): disjoint draws of at most `rows` each from files.

    An int8 step is worth `scale`, else what the files say; float logits without either are quantised by the
    largest magnitude / 127 of each head. Files of one layer each give as many rows as the shortest has.
    """
    require_rows(rows)
    files, shape = open_model(paths)
    steps = _steps(files, shape, scale)
    counts = [file.logits.shape[-2] for file in files]
    columns = max(file.logits.shape[-1] for file in files)
    by_layer = files[0].layer is not None
    if by_layer:
        chosen = [draw(count, (seed,), min(2 * rows, *counts)) for count in counts]
    else:
        every = draw(sum(counts), (seed,), 2 * rows)
        ends = pairwise(np.cumsum([0, *counts]))
        chosen = [every[(every >= first) & (every < last)] - first for first, last in ends]
    parts = [
        padded(*_rows_of(file, which, steps, shape), columns)
        for file, which in zip(files, chosen, strict=True)
    ]
    logits, valid = joined(parts, 0 if by_layer else -2)
    if (valid == valid[:, :1]).all():
        valid = valid[:, :1]  # all heads of a layer share it, as in nearly every model
    sample = LogitSample(logits, valid, steps)
    if sample.rows < 2:
        raise DataError("at least two rows of logits per head", str(sample.rows), "Save more rows.")
    order = np.random.default_rng((seed, 1)).permutation(sample.rows)
    half = sample.rows // 2
    return sample.take(np.sort(order[:half])), sample.take(np.sort(order[half:]))


def _rows_of(
    file: LogitFile, chosen: NDArray[np.int64], scale: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The chosen rows of a file as int8 [layers, heads, rows, k], and their mask of the same shape."""
    part, valid = file.rows(chosen)
    batch = row_batch(part, valid, layer=file.layer, shape=shape, n=None)
    by_layer_and_head = (-1, shape[1], *part.shape[-2:])
    mask = np.ones(part.shape, bool) if batch.chosen is None else batch.chosen
    mask = mask.reshape(by_layer_and_head)
    if part.dtype == np.int8:
        return part.reshape(by_layer_and_head), mask
    require_finite(batch)
    own = scale if file.layer is None else scale[file.layer : file.layer + 1]
    return quantise(part.reshape(by_layer_and_head), own, mask), mask


def _steps(files: list[LogitFile], shape: tuple[int, int], given: float | None) -> NDArray[np.float64]:
    """The logit value of an int8 step of every head [layers, heads]."""
    integers = hold_int8(files)
    if given is not None:
        return np.full(shape, given)
    if integers or all(file.scale is not None for file in files):
        return np.broadcast_to(np.asarray(int8_scale(files, shape, "theirs"), np.float64), shape).copy()
    extremes = LogitRange(shape)
    for file in track(files, total=len(files), description="finding the range"):
        for logits, valid in file.pieces():
            extremes.update(logits, valid, layer=file.layer)
    return extremes.scale
