"""A whole conversion on what ships with the package: a real BERT-tiny and a real sentiment task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.pipeline.convert.finishing import finish
from hccs.pipeline.convert.settings import ConversionSettings
from hccs.pipeline.convert.stages import Conversion
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.data import tasks
from hccs.pipeline.report import figures
from hccs.pipeline.report.fidelity import measure_folders

MODEL = tasks.EMBEDDED / "bert_tiny"


def settings() -> ConversionSettings:
    """The embedded model and task, with a short retraining."""
    recipe = replace(RETRAINING, epochs=0.5, learning_rate=1e-4, batch_size=64)
    return ConversionSettings(model=str(MODEL), task=tasks.TASKS["movies"], sentences=512, retraining=recipe)


def demo(out: str | Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Convert the embedded model; writes the run, its figures and its report into `out`."""
    run = Conversion(settings(), out, say)
    results = run.run()
    say("fidelity …")
    found = measure_folders(run.path / "float", run.path / "model", run.table, run.sets["calibration"])
    atomic.replace(run.path / "fidelity.json", json.dumps(found, indent=1).encode())
    figures.fidelity_figure(found, run.path / "fidelity.png", "BERT-tiny on movie snippets")
    finish(run.path, say)
    return results
