"""A conversion of a real BERT-tiny on a real sentiment task; both ship with the laboratory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hccs.conversion.converted import Converted
    from hccs.conversion.settings import Settings

MODEL = Path(__file__).parent / "bert_tiny"
"""A BERT-tiny fine-tuned on the movie snippets beside it."""


def settings() -> Settings:
    """The model and the task that ship, with a short retraining."""
    # Conversions need torch; the search beside them does not.
    from hccs.conversion.data import tasks
    from hccs.conversion.settings import Settings
    from hccs.conversion.training import RETRAINING

    recipe = replace(RETRAINING, epochs=0.5, learning_rate=1e-4, batch_size=64)
    return Settings(model=str(MODEL), task=tasks.TASKS["movies"], sentences=512, retraining=recipe)


def demo(out: str | Path, say: Callable[[str], None] = print) -> Converted:
    """Convert the model that ships; writes the run, its figures and its report into `out`."""
    from hccs._files import atomic
    from hccs.conversion.converted import Converted
    from hccs.conversion.run import Run, finish
    from hccs_lab.fidelity import fidelity_figure, measure

    run = Run(settings(), out, say)
    run.run()
    say("fidelity …")
    found = measure(run.load("float").eval(), run.delivered(), run.table, run.sets["calibration"])
    atomic.replace(run.path / "fidelity.json", json.dumps(found, indent=1).encode())
    fidelity_figure(found, run.path / "fidelity.png", "BERT-tiny on movie snippets")
    finish(run.path, say)
    return Converted(run.path)
