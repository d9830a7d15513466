"""`Converted`: a finished run, with what it found, its models and data, and how a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hccs._html import framed, table, tag
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.metrics import Metric, agreement_for, metric_for
from hccs.conversion.models import Loaded, best_device, load_classifier, predictions, saved_labels
from hccs.conversion.results import Results
from hccs.conversion.runs.record import read_typed
from hccs.conversion.settings import Settings, convert_command
from hccs.errors import FileError
from hccs.nn.attaching import saved_table
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN

if TYPE_CHECKING:
    from hccs.conversion.report.heads import Head

REPORT = "report.html"


def settings_of(folder: Path, kind: Any = Settings) -> Any:
    """The settings that a run was begun with; a damaged file is refused."""
    hint = "Convert the model into another folder."
    return read_typed(kind, folder / "settings.json", hint, versioned=True)


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a run that `hccs convert` has finished; anything else is refused."""

    folder: Path

    @property
    def settings(self) -> Any:
        """What the run was asked to do."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return Path(self.settings.model).name

    @property
    def report(self) -> Path:
        """The report: one HTML file, which is written where it is missing."""
        from hccs.conversion.report.write import write_report

        path = self.folder / REPORT
        return path if path.exists() else write_report(self.folder)


@dataclass(frozen=True)
class Converted(FinishedRun):
    """The run of a model with scores."""

    def __post_init__(self) -> None:
        _ = self.results
        if not (self.model / "config.json").exists():
            raise FileError(
                f"{self.folder} to hold a converted model", "none", "Convert the model into another folder."
            )

    @cached_property
    def results(self) -> Results:
        return Results.of(self.folder)

    @cached_property
    def settings(self) -> Settings:
        found: Settings = settings_of(self.folder)
        return found

    @property
    def scores(self) -> dict[str, float]:
        """The dev score of every stage that has one, in order."""
        return self.results.scores

    # --- models and data ----------------------------------------------------------------------------------

    @property
    def model(self) -> Path:
        """The converted transformers model and its tokenizer."""
        return self.folder / "model"

    @property
    def integer_model(self) -> IntegerModel:
        """The model all in integers; where there is no such form the refusal says why."""
        if not (self.folder / IN_RUN).exists():
            why = None if self.results.integer is None else self.results.integer.refused
            hint = "The other backends run this model." if why else "The run's hccs convert command makes it."
            if self.settings.integer == "attention":
                hint = "Convert the model with --integer whole, into another folder."
            raise FileError(
                f"{self.folder} to hold an integer model, {IN_RUN}",
                f"a model that has none ({why})" if why else "none",
                hint,
            )
        return IntegerModel.load(self.folder / IN_RUN)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return saved_labels(self.model)

    @cached_property
    def loaded(self) -> Loaded:
        """The converted model, with HCCS attached as it was saved, and its tokenizer."""
        return load_classifier(str(self.model), self.labels, problem=self.settings.task.problem)

    @cached_property
    def table(self) -> ParamTable:
        """The table of the converted model."""
        return saved_table(self.loaded.model)

    @property
    def tables(self) -> dict[str, ParamTable]:
        """The parameters as "calibrated" and as "delivered"."""
        files = {"calibrated": "table.hccs.safetensors", "delivered": CONVERTED}
        return {name: ParamTable.load(self.folder / file) for name, file in files.items()}

    def float_model(self) -> Any:
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
        tokens = tokenise(found, self.loaded.tokenizer, task.n).to(best_device())
        return tokens if found.labelled else tokens.labelled_by(predictions(self.float_model(), tokens))

    # --- what people look at ------------------------------------------------------------------------------

    @cached_property
    def heads(self) -> list[Head]:
        """Every head, the worst first."""
        from hccs.conversion.report.heads import heads_of

        return heads_of(self.folder, self.results.calibrate.heads, self.results.save.heads)

    @cached_property
    def command(self) -> str:
        """The command that makes the same run."""
        return convert_command(self.settings, self.folder)

    @property
    def summary(self) -> str:
        """The run in one sentence."""
        from hccs.conversion.report.conversion import sentence

        return sentence(self)

    def _repr_html_(self) -> str:
        return framed(
            "hccs.convert",
            tag("p", self.summary),
            table(self.results.header, self.results.rows.values()),
            tag("p", "report: ", tag("code", self.folder / REPORT)),
        )
