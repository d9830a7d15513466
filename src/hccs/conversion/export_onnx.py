"""`hccs export onnx RUN`: the converted model as ONNX, checked against PyTorch on the run's dev set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hccs.nn
from hccs._extras import require
from hccs._progress import track
from hccs.conversion.converted import Converted
from hccs.conversion.data.problems import CLASSIFICATION
from hccs.conversion.data.tokens import TokenisedSet
from hccs.errors import ParameterError
from hccs.export.onnx_model import export_onnx
from hccs.numbers.modes import Mode

BATCH = 32


@dataclass(frozen=True)
class Agreement:
    """ONNX Runtime beside PyTorch on the same examples."""

    examples: int
    same_predictions: int
    largest_difference: float
    """The largest difference of two logits."""
    accuracy: float
    """The ONNX model's accuracy."""


def export_run(
    run: str | Path, out: str | Path, *, mode: str = "", attentions: bool = False
) -> tuple[Path, Agreement]:
    """Write the converted model of a run as ONNX and compare it with PyTorch."""
    finished = Converted(Path(run))
    problem = finished.settings.task.problem
    if problem != CLASSIFICATION:
        raise ParameterError(
            "a run of a classification", problem, "hccs.export.onnx_model.export_onnx writes any model."
        )
    require("onnxruntime", "onnx", "to check the exported model")
    model = hccs.nn.attach(finished.loaded.model, finished.table, Mode(mode) if mode else None).eval()
    dev = finished.examples().to("cpu")
    sample = {name: column[:2, :8].long() for name, column in dev.columns.items()}
    path = export_onnx(model, sample, out, mode=mode or None, attentions=attentions)
    return path, compare(model, path, dev)


def compare(model: Any, path: str | Path, data: TokenisedSet) -> Agreement:
    """Predictions of the ONNX file and of the model over all examples, padded as batches are."""
    session = require("onnxruntime", "onnx", "to check the exported model").InferenceSession(str(path))
    same, right, largest = 0, 0, 0.0
    # In the order of the file, so that batches mix lengths and padding is met.
    starts = range(0, len(data), BATCH)
    for start in track(starts, total=len(starts), description="comparing with PyTorch"):
        batch = data.__getitems__(range(start, min(start + BATCH, len(data))))
        labels = batch.pop("labels")
        with torch.no_grad():
            expected = model(**batch).logits
        got = torch.from_numpy(session.run(["logits"], {k: v.numpy() for k, v in batch.items()})[0])
        same += int((got.argmax(-1) == expected.argmax(-1)).sum())
        right += int((got.argmax(-1) == labels).sum())
        largest = max(largest, float((got - expected).abs().max()))
    return Agreement(len(data), same, largest, right / len(data))
