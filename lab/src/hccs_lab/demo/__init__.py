"""A conversion of a real BERT-tiny on a real sentiment task; both ship with the laboratory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.conversion.data import tasks
from hccs.conversion.finishing import finish
from hccs.conversion.report import figures
from hccs.conversion.report.fidelity import measure_folders
from hccs.conversion.settings import ConversionSettings
from hccs.conversion.stages import Conversion
from hccs.conversion.steps import RETRAINING

MODEL = Path(__file__).parent / "bert_tiny"
"""A BERT-tiny fine-tuned on the movie snippets beside it."""


def settings() -> ConversionSettings:
    """The model and the task that ship, with a short retraining."""
    recipe = replace(RETRAINING, epochs=0.5, learning_rate=1e-4, batch_size=64)
    return ConversionSettings(model=str(MODEL), task=tasks.TASKS["movies"], sentences=512, retraining=recipe)


def demo(out: str | Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Convert the model that ships; writes the run, its figures and its report into `out`."""
    run = Conversion(settings(), out, say)
    results = run.run()
    say("fidelity …")
    found = measure_folders(run.path / "float", run.path / "model", run.table, run.sets["calibration"])
    atomic.replace(run.path / "fidelity.json", json.dumps(found, indent=1).encode())
    figures.fidelity_figure(found, run.path / "fidelity.png", "BERT-tiny on movie snippets")
    finish(run.path, say)
    return results
