"""What a comparison is made on: a classifier and its task, or files of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hccs.conversion.data import tasks
from hccs.conversion.runs.converted import RunSettings
from hccs.conversion.runs.record import StageRecord
from hccs.conversion.steps import RETRAINING
from hccs.conversion.training import Recipe
from hccs.errors import FileError, ParameterError


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
        if self.rows < 2:
            raise ParameterError(
                "at least two rows to compare on", str(self.rows), "2048 per head are plenty."
            )
        return self


def from_run(folder: Path) -> ComparisonSettings:
    """The float model, the task and the recipe of an `hccs convert` run."""
    if not StageRecord(folder / "results.json").done("float"):
        raise FileError(
            f"{folder} to hold a float model",
            "a run that has not come so far",
            "Let hccs convert go on first.",
        )
    saved = RunSettings.of(folder)
    return ComparisonSettings(
        model=str(folder / "float"),
        task=saved.task,
        data=saved.data,
        retraining=saved.retraining or RETRAINING,
    )
