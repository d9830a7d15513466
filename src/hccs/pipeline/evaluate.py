"""`hccs evaluate RUN`: score a finished run again, in any mode, on its own dev set or another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hccs.nn
from hccs.pipeline.finished import FinishedRun
from hccs.pipeline.models import accuracy, best_device
from hccs.spec import Mode


def evaluate(run: str | Path, modes: tuple[str, ...] = (), file: str | None = None) -> dict[str, Any]:
    """Accuracy of the float and the converted model of a run, the latter in each mode (default: all four)."""
    chosen = [Mode(mode) for mode in modes] or list(Mode)
    finished = FinishedRun(Path(run))
    dev = finished.examples(file)
    scores: dict[str, Any] = {"examples": len(dev), "float": accuracy(finished.float_model(), dev)}
    model = finished.converted.model.to(best_device())
    for mode in chosen:
        scores[mode.value] = accuracy(hccs.nn.attach(model, finished.table, mode), dev)
    return scores
