"""The delivered model all in integers: written beside it, and scored in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hccs.nn
from hccs._progress import track
from hccs.errors import FileError, HccsError
from hccs.pipeline.data.tokens import TokenisedSet
from hccs.pipeline.models import predictions
from hccs.pipeline.runs.processes import state
from hccs.pipeline.runs.record import StageRecord
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN

BATCH = 32


def write_whole(
    model: Any, calibration: TokenisedSet, dev: TokenisedSet, run: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Lower a model with HCCS attached into its run's folder; what that costs and gains, or why it cannot be.

    The accuracy is that of the file, `agreement` the share of answers that are `model`'s own.
    """
    batches = list(calibration.batches(64))  # all of them in every process: ranges do not merge
    try:
        whole = hccs.nn.lower(model, hccs.nn.current_table(model), batches, tokenizer="model")
    except HccsError as error:  # another family, or numbers that no integer of the program could hold
        say(f"  not all in integers: {error}")
        return {"refused": str(error)}
    file = run / IN_RUN
    if state().is_main_process:
        whole.save(file)
    state().wait_for_everyone()
    chosen = whole_predictions(IntegerModel.load(file), dev)
    return {
        "accuracy": share_equal(chosen, dev.labels),
        "agreement": share_equal(chosen, predictions(model, dev).argmax(-1)),
        "bytes": file.stat().st_size,
        "float32_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),
    }


def load_whole(run: Path) -> IntegerModel:
    """The integer model of a finished run; where there is none, the refusal says why."""
    if not (run / IN_RUN).exists():
        why = StageRecord(run / "results.json").stages.get("whole", {}).get("refused")
        raise FileError(
            f"{run} to hold an integer model, {IN_RUN}",
            f"a model that has none ({why})" if why else "none",
            "The other backends run this model." if why else "The run's hccs convert command makes it.",
        )
    return IntegerModel.load(run / IN_RUN)


def whole_predictions(whole: IntegerModel, data: TokenisedSet) -> torch.Tensor:
    """The label that the integer model gives every example, in order."""
    found = torch.empty(len(data), dtype=torch.long)
    batches = data.by_length(BATCH)  # of similar length: nothing is computed for padding
    for indices in track(batches, total=len(batches), description="the integer model's answers"):
        batch = {name: column.cpu().numpy() for name, column in data.__getitems__(indices).items()}
        answer = whole(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
        found[torch.tensor(indices)] = torch.from_numpy(answer.scores.argmax(-1))
    return found


def share_equal(chosen: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of examples with the same label in both."""
    return int((chosen == labels.cpu()).sum()) / len(chosen)
