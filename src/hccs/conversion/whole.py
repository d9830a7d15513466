"""The delivered model all in integers: written beside it, and scored in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hccs._progress import track
from hccs.conversion.data.problems import IGNORED, IMAGES, TOKENS
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import ACCURACY, Metric, pearson
from hccs.conversion.models import predictions
from hccs.conversion.runs.processes import state
from hccs.conversion.runs.record import StageRecord, read_json
from hccs.conversion.scores import measured
from hccs.errors import FileError
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN
from hccs.program.text_settings import CLASSIFY, TAG, TextSettings

BATCH = 32


def write_whole(whole: IntegerModel, run: Path, tokenizer: Any, problem: str, n: int) -> None:
    """Put an integer model into its run's folder, with what `hccs.Classifier` or `hccs.Tagger` needs."""
    if state().is_main_process:
        text = "" if problem == IMAGES else _tokenizer_text(tokenizer)
        if text:
            settings = TextSettings(TAG if problem == TOKENS else CLASSIFY, min(n, whole.program.longest))
            facts = {**whole.program.facts, "text": settings.as_json()}
            whole = IntegerModel(replace(whole.program, tokenizer=text, facts=facts))
        whole.save(run / IN_RUN)
    state().wait_for_everyone()


def _tokenizer_text(tokenizer: Any) -> str:
    """The text of a tokenizer.json; "" of a tokenizer that is written in Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        return ""
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    return str(plain.to_str())


def score_whole(
    run: Path,
    model: Any,
    dev: TokenisedSet,
    metric: Metric = ACCURACY,
    trained: torch.Tensor | None = None,
    keep: Callable[[torch.Tensor], None] = lambda logits: None,
) -> dict[str, Any]:
    """What the integer model of a run costs and gains; the score is that of the file.

    `agreement` is the share of answers that are those of `model`, which it was lowered from, with floats
    around HCCS; of values their correlation. `equal` is the share that are those of the training model, whose
    logits are `trained`. `keep` is given the integer model's logits.
    """
    file = run / IN_RUN
    logits = whole_logits(IntegerModel.load(file), dev)
    keep(logits)
    equal = {} if trained is None else {"equal": share_equal(logits, trained, dev.labels)}
    reached = measured(metric, logits, dev.labels.cpu())
    return {
        metric.name: reached.value,
        "error": reached.error,
        "agreement": agreement(logits, predictions(model, dev), dev.labels),
        **equal,
        "bytes": file.stat().st_size,
        "float32_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),
    }


def load_whole(run: Path) -> IntegerModel:
    """The integer model of a finished run; where there is none, the refusal says why."""
    if not (run / IN_RUN).exists():
        stages = StageRecord(run / "results.json").stages
        why = stages.get("whole", {}).get("refused")
        hint = "The other backends run this model." if why else "The run's hccs convert command makes it."
        if read_json(run / "settings.json", hint).get("integer") == "attention":
            hint = "Convert the model with --integer whole, into another folder."
        raise FileError(
            f"{run} to hold an integer model, {IN_RUN}",
            f"a model that has none ({why})" if why else "none",
            hint,
        )
    return IntegerModel.load(run / IN_RUN)


def whole_logits(whole: IntegerModel, data: TokenisedSet) -> torch.Tensor:
    """The logits of the integer model for every example, in order and in the shape of `predictions`."""
    rows = (data.width,) if whole.program.per_token else ()
    found = torch.zeros(len(data), *rows, len(whole.labels))
    batches = data.by_length(BATCH)  # of similar length: nothing is computed for padding
    for indices in track(batches, total=len(batches), description="the integer model's answers"):
        answer = whole(*data.integers(indices))
        place = found[:, : answer.scores.shape[1]] if rows else found
        place[torch.tensor(indices)] = torch.from_numpy(answer.logits)
    return found


def agreement(these: torch.Tensor, those: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of equal answers of two models; of values their correlation."""
    if these.shape[-1] == 1:
        return pearson(these.cpu().numpy().ravel(), those.cpu().numpy().ravel())
    return share_equal(these, those, labels)


def share_equal(these: torch.Tensor, those: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of examples, or of labelled tokens, with the same answer; values agree to four digits."""
    these, those, labels = these.cpu().float(), those.cpu().float(), labels.cpu()
    if these.shape[-1] == 1:
        same = torch.isclose(these, those, rtol=1e-4, atol=1e-4 * float(those.std()))
    else:
        same = these.argmax(-1) == those.argmax(-1)
    if these.ndim == 3:
        same = same[:, : labels.shape[1]][labels != IGNORED]
    return float(same.double().mean())
