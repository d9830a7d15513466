"""A finished run, opened again: its converted model, its table and its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hccs.errors import FileError
from hccs.nn.attaching import saved_table
from hccs.numbers.table import ParamTable
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.models import Loaded, best_device, load_classifier, saved_labels
from hccs.pipeline.runs.folder import read_json


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a run that `hccs convert` has finished; anything else is refused."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "model" / "config.json").exists():
            raise FileError(
                f"{self.folder} to hold a converted model",
                "no model/config.json",
                "Finish the run with hccs convert first.",
            )

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run was asked to do."""
        return read_json(self.folder / "settings.json")

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, in order."""
        return saved_labels(self.folder / "model")

    @cached_property
    def converted(self) -> Loaded:
        """The converted model, with HCCS attached as it was saved, and its tokenizer."""
        return load_classifier(str(self.folder / "model"), self.labels)

    @cached_property
    def table(self) -> ParamTable:
        """The table of the converted model."""
        return saved_table(self.converted.model)

    def float_model(self) -> Any:
        """The model before the conversion."""
        return load_classifier(str(self.folder / "float"), self.labels).model.to(best_device())

    def examples(self, file: str | None = None) -> TokenisedSet:
        """The run's dev set, or the examples of another file with the task's columns, on the best device."""
        task = saved_task(self.settings)
        known = replace(task, labels=self.labels)
        if file is not None:
            found = tasks.to_examples(tasks.read_table(Path(file), known), known, file)
        else:
            found = tasks.load(task, self.settings["data"]).dev
        return tokenise(found, self.converted.tokenizer, task.n).to(best_device())


def saved_task(settings: dict[str, Any]) -> tasks.Task:
    """The task in the settings of a run."""
    lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings["task"].items()}
    return tasks.Task(**lists)
