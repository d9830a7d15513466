"""What a comparison is made on: a classifier and its task, and a bounded sample of its int8 logits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hccs._files import safetensors
from hccs.conversion.converted import settings_of
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.fingerprints import of_texts, of_weights
from hccs.conversion.models import Loaded, best_device, load_classifier
from hccs.conversion.runs.record import StageRecord
from hccs.errors import DataError, FileError, ModelError
from hccs.nn.attaching import detach
from hccs.nn.collecting import observing, ranges, real_rows, run
from hccs.nn.functional import quantise as quantise_tensor
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer
from hccs.numbers.arrays import require_integer

PIECE = 1 << 21
"""Logits of a head's rows that are worked on at once."""


@dataclass(frozen=True)
class ComparisonSettings:
    """What to compare on, and how many rows."""

    model: str
    task: tasks.Task
    data: str | None = None
    vocabulary: str | None = None
    sentences: int = 512
    rows: int = 2048
    examples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_integer("sentences", self.sentences, 1, 2**31, "512 are plenty.")
        require_rows(self.rows)


def from_run(folder: Path) -> ComparisonSettings:
    """The float model and the task of an `hccs convert` run."""
    if not StageRecord(folder / "results.json").done("float_model"):
        raise FileError(
            f"{folder} to hold a float model",
            "a run that has not come so far",
            "Let hccs convert go on first.",
        )
    saved = settings_of(folder)
    return ComparisonSettings(model=str(folder / "float"), task=saved.task, data=saved.data)


class ModelSource:
    """A fine-tuned classifier and the data of its task; sets are tokenised when a step asks for them."""

    def __init__(self, settings: ComparisonSettings) -> None:
        self.settings, self.columns = settings, settings.task.n
        data = tasks.load(settings.task, settings.data)
        self._loaded = self._load(settings.model, data.labels)
        self.data = data.numbered_as(self._loaded.labels)

    def _load(self, name: str, labels: tuple[str, ...]) -> Loaded:
        torch.manual_seed(self.settings.seed)
        loaded = load_classifier(name, labels, self.settings.vocabulary)
        if not loaded.has_head:
            raise ModelError(
                f"a fine-tuned classifier at {name}",
                "no classification head for this task",
                "Run hccs convert first and compare on its folder, or name a fine-tuned model.",
            )
        # A converted model comes with HCCS attached; here every method starts from its float softmax.
        return replace(loaded, model=detach(loaded.model.to(best_device()).eval()))

    @property
    def model(self) -> Any:
        return self._loaded.model

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        return {
            "weights": of_weights(self.model),
            "examples": of_texts((self.data.train, self.data.dev)),
        }

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._loaded.tokenizer, self.columns).to(best_device())

    @cached_property
    def dev(self) -> TokenisedSet:
        """Dev examples on the device: all of them, or the first draw of `examples`."""
        dev = self.data.dev
        most = self.settings.examples
        return self._tokenised(dev if most is None else dev.subset(most, self.settings.seed))

    def samples(self) -> tuple[LogitSample, LogitSample]:
        """Rows of training sentences to calibrate on; of dev sentences, at the same scales, to measure on."""
        settings = self.settings
        rest, _ = hold_out(self.data.train)
        first = self._tokenised(rest.subset(settings.sentences, settings.seed))
        others = self._tokenised(self.data.dev.subset(settings.sentences, settings.seed))
        draw = partial(sample_model, self.model, n=self.columns, rows=settings.rows, seed=settings.seed)
        calibration = draw(list(first.batches(64)))
        return calibration, draw(list(others.batches(64)), scale=calibration.scale)


def head_size(model: Any) -> int:
    """Channels of one attention head, as the model's configuration tells."""
    config = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


@dataclass(frozen=True)
class LogitSample:
    """Rows of int8 logits [layers, heads, rows, k], their mask and their scale [layers, heads].

    The mask `valid` is [layers, 1, rows, k]. `layers` names the attention layers they came from.
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
        """Write a safetensors file, which `hccs calibrate` reads, too."""
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
    require_integer("rows", rows, 2, 2**31, "2048 per head are plenty.")
