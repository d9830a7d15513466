"""`hccs evaluate RUN`: score a finished run, in any mode or all in integers, on dev or another file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import hccs.nn
from hccs._progress import track
from hccs.conversion.data.problems import EMBEDDINGS, IGNORED
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import Metric, metric_for, pearson
from hccs.conversion.models import best_device, score
from hccs.conversion.runs.record import problem_of
from hccs.errors import ParameterError
from hccs.nn.integer import NORMALISATION
from hccs.numbers.modes import Mode
from hccs.program import IntegerModel

if TYPE_CHECKING:
    from hccs.conversion.converted import Converted

BATCH = 32


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run's models by name: "float", modes, "MODE integer", or "whole"."""

    metric: str
    examples: int
    scores: dict[str, float]


def evaluate(
    run: str | Path,
    modes: tuple[str, ...] = (),
    file: str | None = None,
    backend: str = "float",
    metric: Metric | str | None = None,
) -> Evaluation:
    """Scores of the float and the converted model of a run, the latter in each mode (default: all).

    The metric is the run's own unless another is given.
    With `backend="integer"` each mode is scored on float q, k, v and, as "MODE integer", on int8 ones; with
    "whole" the run's integer model takes the place of all modes. An encoder of sentences is scored on a file
    of pairs (sentence1, sentence2, score), as "float" and as "whole".
    """
    from hccs.conversion.converted import Converted

    if problem_of(Path(run)) == EMBEDDINGS:
        if modes or metric is not None or backend == "integer":
            raise ParameterError(
                "no mode, metric or backend 'integer' for an encoder of sentences",
                ", ".join([*modes, *([str(metric)] if metric is not None else []), backend]),
                "Its integers are scored by Spearman's correlation on pairs: give a file alone.",
            )
        return _evaluate_pairs(Path(run), file)
    if backend == "whole" and modes:
        raise ParameterError(
            "no mode with the backend 'whole'",
            modes[0],
            "An integer model divides exactly: leave --mode out.",
        )
    finished = Converted(Path(run))
    integer_model = finished.integer_model if backend == "whole" else None  # refused before any computation
    chosen = _chosen(metric, finished)
    dev = finished.examples(file)
    scores = {"float": score(finished.float_model(), dev, chosen)}
    if integer_model is not None:
        scores["whole"] = chosen(integer_logits(integer_model, dev), dev.labels)
        return Evaluation(chosen.name, len(dev), scores)
    model = finished.loaded.model.to(best_device())
    for mode in [Mode(mode) for mode in modes] or list(NORMALISATION if backend == "integer" else Mode):
        scores[mode.value] = score(hccs.nn.attach(model, finished.table, mode), dev, chosen)
        if backend == "integer":
            attached = hccs.nn.attach(model, finished.table, mode, backend=backend)
            scores[f"{mode.value} integer"] = score(attached, dev, chosen)
    return Evaluation(chosen.name, len(dev), scores)


def _evaluate_pairs(run: Path, file: str | None) -> Evaluation:
    """Spearman's correlation of an encoder's float and integer cosines with the scores of a file of pairs."""
    from hccs.conversion.certificate import FILE, score_pairs
    from hccs.conversion.embeddings import ConvertedEncoder
    from hccs.conversion.sentence_transformers import load_sentence_encoder

    finished = ConvertedEncoder(run)
    if file is None:
        raise ParameterError(
            "a file with the columns sentence1, sentence2 and score, to evaluate an encoder of sentences",
            "none",
            f"Give --file; {run / FILE} has the cosines of held-back texts.",
        )
    settings = finished.settings
    theirs = load_sentence_encoder(settings.model, settings.pooling, settings.n)
    found = score_pairs(file, theirs.encode, finished.encoder.encode)
    both = {"float": found.float_model / 100, "whole": found.integer_model / 100}
    return Evaluation("spearman", found.pairs, both)


def _chosen(metric: Metric | str | None, finished: Converted) -> Metric:
    if isinstance(metric, Metric):
        return metric
    return metric_for(finished.settings.task.problem, metric) if metric else finished.metric


def integer_logits(model: IntegerModel, data: TokenisedSet) -> torch.Tensor:
    """The logits of an integer model for every example, in order and in the shape of `predictions`."""
    rows = (data.width,) if model.program.per_token else ()
    found = torch.zeros(len(data), *rows, len(model.labels))
    batches = data.by_length(BATCH)  # of similar length: nothing is computed for padding
    for indices in track(batches, total=len(batches), description="the integer model's answers"):
        answer = model(*data.integers(indices))
        place = found[:, : answer.scores.shape[1]] if rows else found
        place[torch.tensor(indices)] = torch.from_numpy(answer.logits)
    return found


def agreement(these: torch.Tensor, those: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of equal answers of two models; the correlation of values."""
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
