"""A finished run, opened again: its converted model, its table and its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.metrics import Metric, agreement_for, metric_for
from hccs.conversion.models import Loaded, best_device, load_classifier, predictions, saved_labels
from hccs.conversion.runs.record import StageRecord, read_json
from hccs.conversion.training import Recipe
from hccs.errors import FileError
from hccs.nn.attaching import saved_table
from hccs.numbers.table import ParamTable


@dataclass(frozen=True)
class ConvertedRun:
    """The folder of a run that `hccs convert` has finished; anything else is refused."""

    folder: Path

    def __post_init__(self) -> None:
        record = StageRecord(self.folder / "results.json")
        if not record.done("save") or not (self.folder / "model" / "config.json").exists():
            raise FileError(
                f"{self.folder} to hold a converted model",
                "a run that has not finished" if record.stages else "no run",
                "Finish the run with hccs convert first.",
            )

    @cached_property
    def settings(self) -> RunSettings:
        """What the run was asked to do."""
        return RunSettings.of(self.folder)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, in order."""
        return saved_labels(self.folder / "model")

    @cached_property
    def converted(self) -> Loaded:
        """The converted model, with HCCS attached as it was saved, and its tokenizer."""
        return load_classifier(str(self.folder / "model"), self.labels, problem=self.settings.task.problem)

    @cached_property
    def table(self) -> ParamTable:
        """The table of the converted model."""
        return saved_table(self.converted.model)

    def float_model(self) -> Any:
        """The model before the conversion."""
        loaded = load_classifier(str(self.folder / "float"), self.labels, problem=self.settings.task.problem)
        return loaded.model.to(best_device())

    @property
    def metric(self) -> Metric:
        """What the run was scored by."""
        task = self.settings.task
        if task.unlabelled and task.dev is None and not self.settings.metric:
            return agreement_for(task.problem)
        return metric_for(task.problem, self.settings.metric)

    def examples(self, file: str | None = None) -> TokenisedSet:
        """The run's dev set, or the examples of another file with the task's columns, on the best device.

        A dev set without labels has the float model's answers instead.
        """
        task = self.settings.task
        known = replace(task, labels=self.labels)
        if file is not None:
            found = tasks.load_file(file, known)
        else:
            found = tasks.load(task, self.settings.data).numbered_as(self.labels).dev
        tokens = tokenise(found, self.converted.tokenizer, task.n).to(best_device())
        return tokens if found.labelled else tokens.labelled_by(predictions(self.float_model(), tokens))


@dataclass(frozen=True)
class RunSettings:
    """What others need to know of a conversion's settings: its task, its data, and how it retrained."""

    task: tasks.Task
    data: str | None
    retraining: Recipe | None
    metric: str = ""

    @classmethod
    def of(cls, folder: Path) -> RunSettings:
        """Those in the folder of a run; a damaged file is refused."""
        path = folder / "settings.json"
        hint = "Convert the model anew, into another folder."
        saved = read_json(path, hint)
        try:
            task: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in saved["task"].items()
            }
            recipe = Recipe(**saved["retraining"]) if saved["retraining"] else None
            return cls(tasks.Task(**task), saved["data"], recipe, saved.get("metric", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} to be the settings of a conversion", repr(error), hint) from error
