"""What a comparison is made on, and where its rows come from: a classifier and its task, or files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from hccs.conversion.converted import settings_of
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.fingerprints import of_tensors, of_texts, of_weights
from hccs.conversion.models import Loaded, best_device, load_classifier
from hccs.conversion.runs.record import StageRecord
from hccs.conversion.steps import RETRAINING
from hccs.conversion.training import Recipe, taught
from hccs.errors import FileError, ModelError, ParameterError
from hccs.nn.attaching import detach
from hccs_lab.compare.sample import LogitSample, require_rows, sample_files, sample_model


@dataclass(frozen=True)
class ComparisonSettings:
    """What to compare on, how many rows, and how to retrain.

    `scale` is the logit value of an int8 step in files of logits, instead of what they say or, where they
    say nothing, the largest magnitude / 127.
    """

    model: str | None = None
    task: tasks.Task | None = None
    data: str | None = None
    vocabulary: str | None = None
    files: tuple[str, ...] = ()
    scale: float | None = None
    sentences: int = 512
    rows: int = 2048
    examples: int | None = None
    seed: int = 0
    retraining: Recipe = field(default=RETRAINING)

    def checked(self) -> ComparisonSettings:
        """Itself, or the first thing that no comparison could do."""
        if (self.model is None) == (not self.files):
            raise ParameterError("a model or files of logits", "both or neither", "Name one source.")
        if self.scale is not None and not self.files:
            raise ParameterError("a scale for files of logits", "one for a model", "A model needs none.")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise ParameterError("a finite scale > 0", str(self.scale), "It is the worth of an int8 step.")
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        require_rows(self.rows)
        return self


def from_run(folder: Path) -> ComparisonSettings:
    """The float model, the task and the recipe of an `hccs convert` run."""
    if not StageRecord(folder / "results.json").done("float_model"):
        raise FileError(
            f"{folder} to hold a float model",
            "a run that has not come so far",
            "Let hccs convert go on first.",
        )
    saved = settings_of(folder)
    return ComparisonSettings(
        model=str(folder / "float"),
        task=saved.task,
        data=saved.data,
        retraining=saved.retraining or RETRAINING,
    )


class ModelSource:
    """A fine-tuned classifier and the data of its task; sets are tokenised when a step asks for them."""

    def __init__(self, settings: ComparisonSettings) -> None:
        assert settings.model is not None and settings.task is not None
        self.settings, self.columns = settings, settings.task.n
        data = tasks.load(settings.task, settings.data)
        self._loaded = self._load(settings.model, data.labels)
        self.data = data.numbered_as(self._loaded.labels)
        self._rest, self._held = hold_out(self.data.train)

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

    @property
    def head_size(self) -> int:
        return head_size(self.model)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._loaded.tokenizer, self.columns).to(best_device())

    @cached_property
    def train_set(self) -> TokenisedSet:
        """Training examples on the device, without those that are held back."""
        return self._tokenised(self._rest)

    @cached_property
    def held_set(self) -> TokenisedSet:
        return self._tokenised(self._held)

    @cached_property
    def taught_set(self) -> TokenisedSet:
        return taught(self.train_set, self.model)

    @cached_property
    def dev(self) -> TokenisedSet:
        """Dev examples on the device: all of them, or the first draw of `examples`."""
        dev = self.data.dev
        most = self.settings.examples
        return self._tokenised(dev if most is None else dev.subset(most, self.settings.seed))

    def samples(self) -> tuple[LogitSample, LogitSample]:
        """Rows of training sentences to calibrate on; of dev sentences, at the same scales, to measure on."""
        settings = self.settings
        first = self._tokenised(self._rest.subset(settings.sentences, settings.seed))
        others = self._tokenised(self.data.dev.subset(settings.sentences, settings.seed))
        draw = partial(sample_model, self.model, n=self.columns, rows=settings.rows, seed=settings.seed)
        calibration = draw(list(first.batches(64)))
        return calibration, draw(list(others.batches(64)), scale=calibration.scale)


def head_size(model: Any) -> int:
    """Channels of one attention head, as the model's configuration tells."""
    config = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


class FileSource:
    """Files of logits: rows without a model, so that nothing is scored or retrained."""

    def __init__(self, settings: ComparisonSettings) -> None:
        self._samples = sample_files(
            settings.files, rows=settings.rows, seed=settings.seed, scale=settings.scale
        )
        self.columns = self._samples[1].logits.shape[-1]

    @property
    def fingerprints(self) -> dict[str, str]:
        arrays = (array for sample in self._samples for array in (sample.logits, sample.valid))
        return {"logits": of_tensors(torch.from_numpy(array) for array in arrays)}

    def samples(self) -> tuple[LogitSample, LogitSample]:
        """Disjoint draws of rows to calibrate on and to measure on."""
        return self._samples


def opened(settings: ComparisonSettings) -> ModelSource | FileSource:
    """The source that the settings name, read as far as is needed to know that it is good."""
    return ModelSource(settings) if settings.model else FileSource(settings)
