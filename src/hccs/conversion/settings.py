"""What a conversion is asked for: the settings of one run, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from hccs.calibration.searching import GRANULARITIES
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import HOLDOUT_LIMIT
from hccs.conversion.forms import LineForm, chosen_form
from hccs.conversion.steps import RETRAINING
from hccs.conversion.training import Recipe
from hccs.errors import ParameterError
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region

FINE_TUNING = Recipe(epochs=3, learning_rate=1e-4)

INTEGER = ("whole", "attention")
"""What of the model becomes integers."""


@dataclass(frozen=True)
class ConversionSettings:
    """What to convert, on what data, and how.

    `labels` are the data's in the order of the model's outputs, where its own names do not tell; `new_head`
    replaces the head that it has. With `integer` "whole" the model is trained as its integer program
    computes, and lowered to it; with "attention" it is retrained with HCCS and floats around it. Without
    `retraining` the calibrated model is delivered, with `reconstruct` after its weights were mended in closed
    form on `reconstruction_sentences`. The labels of an unlabelled task are the float model's answers.
    `lines` and `scores` are those of `chosen_form`, which chooses what is None. `metric` is a name, or
    `module:function`.
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
        """Of HCCS: what is not given depends on n and on whether there is retraining."""
        return chosen_form(self.task.n, self.lines, self.scores, self.retraining is not None)

    @property
    def reconstructs(self) -> bool:
        """Whether weights are mended in closed form: training does more where there is any."""
        return self.reconstruct and self.retraining is None

    def __post_init__(self) -> None:
        Mode(self.mode)
        if self.task.n < 1:
            raise ParameterError("n of at least 1", str(self.task.n), "Raise --n.")
        Region(self.task.n, self.form.sum_bits)
        if self.granularity not in GRANULARITIES:
            raise ParameterError(
                f"granularity {', '.join(GRANULARITIES)}",
                repr(self.granularity),
                "Choose another --granularity; the paper uses head.",
            )
        if self.integer not in INTEGER:
            raise ParameterError(
                f"integer {' or '.join(INTEGER)}", repr(self.integer), "Choose another --integer."
            )
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        if self.reconstruction_sentences < 1:
            raise ParameterError(
                "at least one sentence to mend weights on",
                str(self.reconstruction_sentences),
                "2048 are plenty.",
            )
        if self.seed < 0:
            raise ParameterError("seed of at least 0", str(self.seed), "Choose another --seed.")
