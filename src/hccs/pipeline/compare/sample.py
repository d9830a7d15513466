"""Real int8 logits with their masks: a bounded sample of rows from a model, or from files of logits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._files import safetensors as _safetensors
from hccs._progress import track
from hccs.calibration.files import LogitFile, open_model
from hccs.calibration.scale import LogitRange, quantise
from hccs.errors import DataError, FileError, MaskError, ParameterError
from hccs.nn.collecting import observing, ranges, real_rows, run
from hccs.nn.functional import quantise as quantise_tensor
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 1 << 21
"""Logits of a head's rows that are worked on at once."""


@dataclass(frozen=True)
class LogitSample:
    """Rows of int8 logits [layers, heads, rows, k], their mask [layers, rows, k] and scale [layers, heads].

    `layers` names the attention layers they came from; it is empty when they came from a file.
    """

    logits: NDArray[np.int8]
    valid: NDArray[np.bool_]
    scale: NDArray[np.float64]
    layers: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)."""
        return self.logits.shape[0], self.logits.shape[1]

    @property
    def rows(self) -> int:
        """Rows per head."""
        return self.logits.shape[2]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The mask, shaped to broadcast against `logits`."""
        return self.valid[:, None]

    def take(self, rows: NDArray[np.int64]) -> LogitSample:
        """The sample of some of its rows."""
        return LogitSample(self.logits[:, :, rows], self.valid[:, rows], self.scale, self.layers)

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """(layer, rows) of parts small enough to hold several float64 copies of."""
        step = max(1, PIECE // max(1, self.logits.shape[1] * self.logits.shape[3]))
        for layer in range(self.logits.shape[0]):
            for first in range(0, self.rows, step):
                yield layer, slice(first, first + step)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `hccs calibrate` and `hccs compare` read."""
        arrays = {"logits": self.logits, "valid": self.mask, "scale": self.scale}
        _safetensors.write(path, arrays, {"layers": "\n".join(self.layers)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LogitSample:
        """Read what `save` wrote."""
        arrays, metadata = _safetensors.read(path)
        names = tuple(metadata.get("layers", "").split("\n")) if metadata.get("layers") else ()
        try:
            return cls(arrays["logits"], arrays["valid"][:, 0].astype(bool), arrays["scale"], names)
        except (KeyError, IndexError) as error:
            raise FileError(
                f"{path} to be a sample of logits", repr(error), "Delete it to collect anew."
            ) from error


class RowSampler(Observer):
    """Keeps, quantised, a few rows of every batch."""

    def __init__(self, inner: AttentionSlot, scale: NDArray[np.float64], per_batch: int, seed: int) -> None:
        super().__init__(inner)
        self.per_batch, self.seed = per_batch, seed
        self.scale = torch.tensor(scale, dtype=torch.float32)
        self.kept: list[tuple[NDArray[np.int8], NDArray[np.bool_]]] = []

    def observe(self, inputs: AttentionInputs) -> None:
        """The same rows of every layer."""
        z = inputs.logits
        rows = real_rows(z, inputs.valid)
        full = torch.ones_like(z, dtype=torch.bool) if rows is None else rows.expand(z.shape)
        by_row = full[:, 0].reshape(-1, z.shape[-1])
        real = by_row.any(-1).nonzero()[:, 0].cpu().numpy()
        # The batch's number seeds the draw, so that every layer keeps the same rows.
        chosen = torch.as_tensor(real[_draw(len(real), (self.seed, len(self.kept)), self.per_batch)])
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
    _require_rows(rows)
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
    parts = [_joined([_padded(*part, n) for part in samplers[name].kept], -2) for name in names]
    logits, valid = (np.stack(arrays) for arrays in zip(*parts, strict=True))
    sample = LogitSample(logits, valid, scale, tuple(names))
    return sample if sample.rows <= rows else sample.take(_draw(sample.rows, (seed,), rows))


def sample_files(
    paths: Sequence[str | os.PathLike[str]], *, rows: int, seed: int = 0
) -> tuple[LogitSample, LogitSample]:
    """(rows to calibrate on, rows to measure on): disjoint draws of at most `rows` each from files.

    The files are those of `hccs calibrate`. int8 logits must bring their `scale`; float logits are quantised
    by theirs, or by the largest magnitude / 127 of each head.
    """
    _require_rows(rows)
    files, shape = open_model(paths)
    by_layer = files[0].layer is not None
    counts = [file.logits.shape[-2] for file in files]
    if by_layer and len(set(counts)) != 1:
        raise DataError(
            "as many rows in every layer's file", str(counts), "Save the same rows of all layers."
        )
    scale = _scale(files, shape)
    chosen = _draw(counts[0] if by_layer else sum(counts), (seed,), 2 * rows)
    columns = max(file.logits.shape[-1] for file in files)
    parts = []
    for file, first in zip(files, np.cumsum([0, *counts]), strict=False):
        here = (
            chosen
            if by_layer
            else chosen[(chosen >= first) & (chosen < first + file.logits.shape[-2])] - first
        )
        parts.append(_padded(*_rows_of(file, here, scale), columns))
    sample = LogitSample(*_joined(parts, 0 if by_layer else -2), scale)
    if sample.rows < 2:
        raise DataError("at least two rows of logits per head", str(sample.rows), "Save more rows.")
    order = np.random.default_rng((seed, 1)).permutation(sample.rows)
    half = sample.rows // 2
    return sample.take(np.sort(order[:half])), sample.take(np.sort(order[half:]))


def _draw(count: int, seed: tuple[int, ...], most: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def _padded(
    x: NDArray[np.int8], valid: NDArray[np.bool_], columns: int
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    def wide(a: NDArray[Any]) -> NDArray[Any]:
        return np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, columns - a.shape[-1])])

    return wide(x), wide(valid)


def _joined(
    parts: Sequence[tuple[NDArray[np.int8], NDArray[np.bool_]]], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    x, valid = zip(*parts, strict=True)
    return np.concatenate(x, axis), np.concatenate(valid, axis)


def _require_rows(rows: int) -> None:
    if rows < 2:
        raise ParameterError("at least two rows to compare on", str(rows), "2048 per head are plenty.")


def _rows_of(
    file: LogitFile, chosen: NDArray[np.int64], scale: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The chosen rows of a file as int8 [layers, heads, rows, k], and their mask [layers, rows, k]."""
    part = np.asarray(file.logits[..., chosen, :])
    mask = _mask(file, chosen, part.shape)
    x = (
        part
        if part.dtype == np.int8
        else quantise(part, scale if file.layer is None else scale[file.layer], mask)
    )
    x, mask = x.reshape(-1, *x.shape[-3:]), mask.reshape(-1, *mask.shape[-3:])
    if (mask != mask[:, :1]).any():
        raise DataError(
            f"a mask that all heads of a layer share in {file.path}",
            "masks that differ by head",
            "Compare such heads one at a time.",
        )
    return x, mask[:, 0]


def _mask(file: LogitFile, chosen: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    part = file.valid
    if part is None:
        return np.ones(shape, bool)
    axis = -2 if part.dtype == bool else -1
    if part.ndim >= -axis and part.shape[axis] == file.logits.shape[-2]:
        part = np.take(part, chosen, axis)
    if part.dtype != bool:
        part = np.arange(shape[-1]) < part[..., None]
    try:
        return np.broadcast_to(part, shape)
    except ValueError as error:
        raise MaskError(
            f"a mask or row lengths in {file.path} that broadcast to the logits {file.logits.shape}",
            f"shape {file.valid.shape if file.valid is not None else ()}",
            "Save one length per row, or a mask of the logits' shape.",
        ) from error


def _scale(files: list[LogitFile], shape: tuple[int, int]) -> NDArray[np.float64]:
    given = [np.asarray(file.scale, np.float64) for file in files if file.scale is not None]
    if len(given) == len(files):
        if files[0].layer is not None:
            return np.stack([np.broadcast_to(part, shape[1:]) for part in given])
        if any(not np.array_equal(part, given[0]) for part in given):
            raise DataError("one scale per head in all files", "different ones", "Quantise all files alike.")
        return np.broadcast_to(given[0], shape).copy()
    if any(file.logits.dtype == np.int8 for file in files):
        raise ParameterError(
            "a scale for int8 logits", "none", "Store an array 'scale' [layers, heads] beside 'logits'."
        )
    extremes = LogitRange(shape)
    for file in track(files, total=len(files), description="finding the range"):
        for logits, valid in file.pieces():
            extremes.update(logits, valid, layer=file.layer)
    return extremes.scale
