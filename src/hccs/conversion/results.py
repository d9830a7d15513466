"""What each stage of a conversion found: the values that terminal, model card and report read.

`results.json` holds them in their `asdict` form by stage, beside the seconds that each stage took.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hccs.conversion.data.problems import EMBEDDINGS
from hccs.conversion.runs.record import REDO, StageRecord, finished, problem_of, typed
from hccs.conversion.scores import Difference, Measured
from hccs.errors import FileError

STEPS = {
    "float_model": "float",
    "calibrated": "HCCS, calibrated",
    "untrained": "all in integers, untrained",
    "retrain": "trained",
    "attention": "HCCS, int8 q, k and v",
    "integer": "all in integers",
}
"""Stages that have a score, in words."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What every stage notes beside its own findings."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChangedAnswer:
    """A dev example that a converted model answers otherwise than the float model; numbers are of labels."""

    example: int
    text: str
    label: int
    before: int
    after: int


@dataclass(frozen=True)
class AnswersByLabel:
    """A model's answers by label, and those that differ from the float model's."""

    confusion: tuple[tuple[int, ...], ...]
    """Rows are the examples' labels, columns the answers."""
    changed: int
    examples: tuple[ChangedAnswer, ...]
    """The first of those that changed."""


@dataclass(frozen=True)
class Reached:
    """What a model reaches on dev, beside the float model."""

    score: Measured
    against_float: Difference
    answers: AnswersByLabel | None
    """None for values, and where there are too many labels to list."""


@dataclass(frozen=True)
class HeadFit:
    """How closely one head's HCCS follows softmax, in nats."""

    layer: int
    head: int
    kl: float
    kl_renormalised: float
    entropy: float


@dataclass(frozen=True)
class CorrectedMatrix:
    """A weight matrix refitted by ridge regression: its error before and after, on sentences held back."""

    layer: int
    matrix: str
    ridge: float | None
    before: float
    after: float


@dataclass(frozen=True)
class Verdict:
    """Whether a step that follows the float model was kept, judged on held-back sentences."""

    kept: bool
    kl: tuple[float, float]
    """KL to the float model's answers without and with the step."""
    nearer: tuple[float, float]
    """How much nearer the step comes, and the standard error of that."""
    sentences: int
    matrices: tuple[CorrectedMatrix, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FloatModel(Stage):
    metric: str
    score: Measured
    examples: int
    cut: dict[str, int]
    """Texts longer than n, by part of the data."""
    fine_tuned: bool
    labels: tuple[str, ...]
    fingerprints: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Collected(Stage):
    sentences: int
    rows: int
    scale: str
    """How the scale of logits was chosen."""


@dataclass(frozen=True, kw_only=True)
class Calibrated(Stage):
    kl: float
    lines: int
    scores: str
    sum_bits: int
    objective: str
    refined: Verdict | None = None
    heads: tuple[HeadFit, ...]


@dataclass(frozen=True, kw_only=True)
class Reconstructed(Stage):
    correction: Verdict | None = None
    refused: str | None = None
    refined: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class Scored(Stage):
    """A score with floats around HCCS, and the scores in every mode."""

    reached: Reached
    modes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class IntegerForm(Stage):
    """What a model reaches in integers, where it has such a form, or why it was refused."""

    reached: Reached | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trained(Scored):
    held_back: float
    """The score on the held-back examples, which chose the weights."""
    history: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AllInteger(IntegerForm):
    """The delivered model all in integers."""

    agreement: float = 0.0
    """The share of answers that are those of the same weights with floats around HCCS."""
    equal: float | None = None
    """The share of answers that are those of the model as it was trained."""
    bytes: int = 0
    float32_bytes: int = 0
    correction: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class Saved(Stage):
    mode: str
    kl: float
    heads: tuple[HeadFit, ...]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The stages of a finished run in order; None for those that it has not."""

    float_model: FloatModel
    collect: Collected
    calibrate: Calibrated
    reconstruct: Reconstructed | None = None
    calibrated: Scored
    """HCCS with the calibrated parameters, before any training."""
    untrained: IntegerForm | None = None
    """All in integers, before any training."""
    retrain: Trained | None = None
    attention: IntegerForm
    """The delivered model with int8 q, k and v."""
    integer: AllInteger | None = None
    save: Saved
    seconds: dict[str, float]

    @classmethod
    def of(cls, folder: Path) -> Results:
        """The results of a finished run; an unfinished run and an altered file are refused."""
        if problem_of(folder) == EMBEDDINGS:
            raise FileError(
                f"{folder} to be the run of a model with scores",
                "one of an encoder of sentences",
                "hccs.Encoder.load and hccs embed take it; hccs evaluate scores it on a file of pairs.",
            )
        record = finished(folder, _REQUIRED, "Finish the run with hccs convert first.")
        seconds = typed(dict[str, float], record.seconds, record.path, REDO)
        return cls(**stages_of(record), seconds=seconds)

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages that the run has, by name."""
        found = {name: getattr(self, name) for name in KINDS}
        return {name: stage for name, stage in found.items() if stage is not None}

    def reached(self, stage: str) -> Reached | None:
        """What a stage's model reaches on dev beside the float model, if it was scored."""
        found: Reached | None = getattr(getattr(self, stage), "reached", None)
        return found

    def score(self, stage: str) -> Measured | None:
        reached = self.reached(stage)
        if stage == "float_model":
            return self.float_model.score
        return None if reached is None else reached.score

    @property
    def scores(self) -> dict[str, float]:
        """The dev score of every stage that has one, in order."""
        found = {name: self.score(name) for name in self.stages}
        return {name: score.value for name, score in found.items() if score is not None}

    @property
    def delivered(self) -> str:
        """The stage whose score is that of what the run delivers."""
        order = ("integer", "attention", "retrain", "calibrated")
        return next(stage for stage in order if self.score(stage) is not None)

    def shown(self, score: float) -> str:
        """An accuracy in per cent, any other score as it is."""
        return f"{100 * score:.2f} %" if self.float_model.metric == "accuracy" else f"{score:.4f}"

    @property
    def header(self) -> list[str]:
        return ["step", f"dev {self.float_model.metric}", "95 %", "points", "95 %, paired"]

    @property
    def rows(self) -> dict[str, list[str]]:
        """By stage: its name, its score and how far it is from the float model's, with intervals."""
        found = {}
        for stage in (name for name in STEPS if name in self.scores):
            score, reached = self.score(stage), self.reached(stage)
            assert score is not None
            low, high = (self.shown(end).removesuffix(" %") for end in score.interval)
            name = STEPS[stage] + ", delivered" * (stage == self.delivered)
            found[stage] = [name, self.shown(score.value), f"{low} to {high}", "", ""]
            if reached is not None:
                difference = reached.against_float
                low, high = (f"{100 * end:+.2f}" for end in difference.interval)
                found[stage][3:] = [f"{100 * difference.value:+.2f}", f"{low} to {high}"]
        return found


def _kinds() -> dict[str, Any]:
    hints = get_type_hints(Results)
    del hints["seconds"]
    return {name: (get_args(kind) or (kind,))[0] for name, kind in hints.items()}


KINDS: dict[str, Any] = _kinds()
"""The result of every stage by its name, in order."""

_REQUIRED = [field.name for field in fields(Results) if field.default is MISSING and field.name in KINDS]


def stages_of(record: StageRecord) -> dict[str, Any]:
    """The stages that a record holds; an altered file is refused."""
    return {
        name: typed(kind, record.stages[name], record.path, REDO)
        for name, kind in KINDS.items()
        if name in record.stages
    }
