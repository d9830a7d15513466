"""Real int8 logits with their masks: a bounded sample of rows of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hccs._files import safetensors
from hccs.errors import DataError, FileError, ParameterError
from hccs.nn.collecting import observing, ranges, real_rows, run
from hccs.nn.functional import quantise as quantise_tensor
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        """(layers, heads)."""
        return self.logits.shape[0], self.logits.shape[1]

    @property
    def rows(self) -> int:
        """Rows per head."""
        return self.logits.shape[2]

    def take(self, rows: NDArray[np.int64]) -> LogitSample:
        """The sample of some of its rows."""
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
        """Read what `save` wrote."""
        arrays, metadata = safetensors.read(path)
        names = tuple(metadata.get("layers", "").split("\n")) if metadata.get("layers") else ()
        try:
            return cls(arrays["logits"], arrays["valid"].astype(bool), arrays["scale"], names)
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
    """At most `most` numbers below `count`, in order."""
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
    """Parts of a sample, as one."""
    x, valid = zip(*parts, strict=True)
    return np.concatenate(x, axis), np.concatenate(valid, axis)


def require_rows(rows: int) -> None:
    """Refuse a number of rows that cannot be parted in two."""
    if rows < 2:
        raise ParameterError("at least two rows to compare on", str(rows), "2048 per head are plenty.")
