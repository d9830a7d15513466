"""The settings of one conversion, checked when they are made, and the form of HCCS that they lead to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from hccs.calibration.searching import GRANULARITIES
from hccs.calibration.two_lines import SCORES
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import HOLDOUT_LIMIT
from hccs.conversion.training import LAST_SEED, RETRAINING, Recipe
from hccs.errors import ParameterError, require_one_of
from hccs.numbers.arrays import require_integer
from hccs.numbers.modes import Mode
from hccs.numbers.region import NARROW, WIDE, Region

FINE_TUNING = Recipe(epochs=3, learning_rate=1e-4)

INTEGER = ("whole", "attention")
"""What of the model becomes integers."""


LONGEST_UINT8 = 128
"""Columns up to which two lines have uint8 scores by default: operands of one int8 product with v, the
fastest form on CPUs. In longer rows a smallest score of 1 in 255 gives too much weight to distant logits."""

USUAL_DISTANCE = 64
"""Steps from the maximum within which heads lose their mass: about what calibration finds as D."""


@dataclass(frozen=True)
class LineForm:
    """How many lines a score has, whether it is int16 or uint8, and the bits of a row's sum."""

    lines: int
    scores: str
    sum_bits: int

    def reason(self, retrains: bool) -> str:
        """Why this form, for the log of a run."""
        if self.lines == 2:
            return "" if retrains else ": close enough to softmax without any training"
        return "" if self.sum_bits == NARROW else ": rows this long would leave 15 bits no useful slope"

    def __str__(self) -> str:
        sums = "" if self.lines == 2 or self.sum_bits == NARROW else f", sums of {self.sum_bits} bits"
        return f"{'two lines' if self.lines == 2 else 'one line'}, {self.scores} scores{sums}"


def chosen_form(n: int, lines: int | None, scores: str | None, retrains: bool) -> LineForm:
    """The form for rows of up to n columns; what is None is chosen.

    Without retraining that is two lines, which need none, with uint8 scores up to 128 columns. With
    retraining it is the paper's one line; its sums are wide where 15 bits would leave no useful slope.

    >>> print(chosen_form(64, None, None, retrains=False))
    two lines, uint8 scores
    >>> print(chosen_form(512, None, None, retrains=True))
    one line, int16 scores, sums of 24 bits
    """
    if isinstance(lines, bool) or lines not in (None, 1, 2):
        raise ParameterError("lines 1 or 2", repr(lines), "Choose other --lines, or leave it out.")
    if scores is not None:
        require_one_of("scores", scores, SCORES, "Choose other --scores.")
    lines = lines or (1 if retrains else 2)
    if lines == 2:
        return LineForm(2, scores or ("uint8" if n <= LONGEST_UINT8 else "int16"), WIDE)
    if scores == "uint8":
        raise ParameterError(
            "two lines for uint8 scores", "one line", "Add --lines 2, or leave --scores out."
        )
    # A useful slope falls by more than one step a distance.
    return LineForm(1, "int16", NARROW if Region(n).max_slope(USUAL_DISTANCE) > 1 else WIDE)


@dataclass(frozen=True)
class Settings:
    """What to convert, on what data, and how.

    `labels` are the data's in the order of the model's outputs, where its own names do not tell; `new_head`
    replaces the head that it has, and `fine_tuning` trains a head that came untrained. With `integer` "whole"
    the model is trained as its integer program computes, and lowered to it; with "attention" it is retrained
    with HCCS and floats around it. Without `retraining` the calibrated model is delivered; `reconstruct`
    then corrects its weights by closed-form ridge regression on `reconstruction_sentences`. An unlabelled
    task is labelled by the float model's answers. `chosen_form` chooses `lines` and `scores` that are None.
    `metric` is a name, or `module:function`.
    """

    model: str
    task: tasks.Task
    data: str | None = None
    vocabulary: str | None = None
    labels: tuple[str, ...] = ()
    new_head: bool = False
    granularity: str = "head"
    mode: str = "i16_div"
    sentences: int = 512
    refine: bool = True
    reconstruct: bool = True
    reconstruction_sentences: int = 2048
    seed: int = 0
    held_back: int = HOLDOUT_LIMIT
    fine_tuning: Recipe = field(default=FINE_TUNING)
    retraining: Recipe | None = field(default=RETRAINING)
    integer: str = "whole"
    metric: str = ""
    lines: int | None = None
    scores: str | None = None

    @property
    def form(self) -> LineForm:
        """The form of HCCS; what is not given depends on n and on whether there is retraining."""
        return chosen_form(self.task.n, self.lines, self.scores, self.retraining is not None)

    @property
    def reconstructs(self) -> bool:
        """Whether weights are corrected in closed form; a training makes that needless."""
        return self.reconstruct and self.retraining is None

    @property
    def refines(self) -> bool:
        """Whether theta is fitted to the model's answers; shared parameters stay as they were found."""
        return self.refine and self.granularity == "head"

    def __post_init__(self) -> None:
        Mode(self.mode)
        if self.task.n < 1:
            raise ParameterError("n of at least 1", str(self.task.n), "Raise --n.")
        Region(self.task.n, self.form.sum_bits)
        hint = "Choose another --granularity; the paper uses head."
        require_one_of("granularity", self.granularity, GRANULARITIES, hint)
        require_one_of("integer", self.integer, INTEGER, "Choose another --integer.")
        for name, usual in (("sentences", 512), ("reconstruction_sentences", 2048)):
            require_integer(name, getattr(self, name), 1, 2**31, f"{usual} are plenty.")
        require_integer("seed", self.seed, 0, LAST_SEED, "Choose another --seed.")


_SPELLED_APART = (
    "model",
    "task",
    "data",
    "labels",
    "retraining",
    "fine_tuning",
    "sentences",
    "held_back",
    "reconstruction_sentences",
)
"""Settings whose options have other names, or none."""

_RECIPE = ("epochs", "learning_rate", "batch_size")
"""What of a recipe the command line sets."""


def convert_command(settings: Settings, out: Path) -> str:
    """`hccs convert` with every setting that differs from its default."""
    words = ["hccs", "convert", settings.model, "--out", str(out), *_data_words(settings)]
    if settings.labels:
        words += ["--labels", ",".join(settings.labels)]
    defaults: dict[str, Any] = {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(Settings)
    }
    for name, default in defaults.items():
        value = getattr(settings, name)
        if name not in _SPELLED_APART and value not in (default, None):
            words += _option(name, value)
    if settings.fine_tuning.epochs != defaults["fine_tuning"].epochs:
        words += _option("fine_tuning_epochs", settings.fine_tuning.epochs)
    words += _recipe_words(settings.retraining, defaults["retraining"])
    return shlex.join(words)


def _data_words(settings: Settings) -> Iterator[str]:
    task = settings.task
    if task.custom:
        yield from ("--unlabelled" if task.unlabelled else "--train", task.train)
        if task.dev:
            yield from ("--dev", task.dev)
    else:
        yield from ("--task", task.name)
        if task.n != tasks.TASKS[task.name].n:
            yield from ("--n", str(task.n))
    if task.custom:
        yield from ("--text", ",".join(task.text), "--label", task.label, "--n", str(task.n))
        if task.problem != "classification":
            yield from ("--problem", task.problem)
    if settings.data:
        yield from ("--data", settings.data)


def _recipe_words(chosen: Recipe | None, default: Recipe) -> list[str]:
    if chosen is None:
        return ["--no-retrain"]
    changed = [name for name in _RECIPE if getattr(chosen, name) != getattr(default, name)]
    return [word for name in changed for word in _option(name, getattr(chosen, name))]


def _option(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{option}"]
    return [f"--{option}", str(value)]
