"""`hccs reproduce long`: KL and accuracy of long rows, n = 128 to 1024, on documents; without training.

One float model per encoder and seed, fine-tuned on SST-2's sentences and then on documents of all lengths;
its table of positions is extended beyond 512 by itself before that. At every n it is calibrated and scored on
documents of that length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import nn

import hccs.nn
from hccs._files.atomic import replacing_folder
from hccs.calibration import HeadStatistics, fidelity, search
from hccs.calibration.two_lines import Fitting, fitting_for
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import ACCURACY
from hccs.conversion.models import best_device, load_classifier, predictions
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.record import StageRecord
from hccs.conversion.training import Recipe
from hccs.errors import HccsError
from hccs_lab.reproduce import documents, sets
from hccs_lab.reproduce.experiment import FORMS, ExperimentRun, points, reached
from hccs_lab.reproduce.plan import ENCODERS, PATIENCE, Experiment, Plan, require_data
from hccs_lab.reproduce.run import prefixed, require_same_data, run_each, run_stages

MODELS = ("small", "minilm")
"""Encoders of the table."""

IMPORTANT = 512
"""Lengths from here on are measured first, then shorter and shorter ones."""

RECIPE = Recipe(epochs=2, learning_rate=5e-5, batch_size=32, patience=PATIENCE)
"""On documents, from the weights that know sentences."""

MEASURED = ("one line", "one line, wide", "two lines", "two lines, uint8")
LOGITS = 2**24
"""Places of one head's rows, over a batch, that are computed at a time."""


def run(plan: Plan, chosen: Sequence[Experiment], jobs: int = 1, say: Callable[[str], None] = print) -> None:
    """Every length of every experiment that is not recorded yet, several processes at a time."""
    require_data(plan.data, ["sst2", "mnli", *(ENCODERS[e.model].folder for e in chosen)])
    with RunFolder(plan.out / "long", settings()):
        require_same_data(plan, ["sst2", "mnli"], [e.model for e in chosen], plan.out / "long")
        (plan.out / "long" / "cells").mkdir(exist_ok=True)
        documents.prepared(plan.data, plan.work)  # once, not in every process
        sets.prepared("sst2", plan.data, plan.work)
        run_each(partial(run_experiment, plan, say=say), chosen, jobs)


def settings() -> dict[str, Any]:
    from hccs_lab.reproduce.run import settings as common

    return common() | {
        "documents": {"lengths": documents.LENGTHS, "counts": documents.COUNTS, "recipe": asdict(RECIPE)},
        "fitting": {
            form: {str(n): fitting_of(form, n).record for n in documents.LENGTHS} for form in MEASURED
        },
    }


def run_experiment(plan: Plan, experiment: Experiment, say: Callable[[str], None] = print) -> None:
    record = StageRecord(plan.out / "long" / "cells" / f"{experiment.name}.json")
    name = f"long {experiment.name}"
    work = LongRun(plan, experiment, prefixed(say, name))
    stages: dict[str, Callable[[], dict[str, Any]]] = {"float": work.fine_tuned}
    stages |= {str(n): partial(work.at_length, n) for n in in_order(documents.LENGTHS)}
    if all(record.done(stage) for stage in stages):
        return
    if record.done("float") and not work.kept:
        work.fine_tuned()
    run_stages(name, record, stages, say)


class LongRun:
    """The float model of documents, and what is measured of it at each length."""

    def __init__(self, plan: Plan, experiment: Experiment, say: Callable[[str], None] = print) -> None:
        self.plan, self.experiment, self.say = plan, experiment, say
        self.folder = plan.work / "models" / f"long-{experiment.model}-{experiment.seed}"
        self.labels = tasks.TASKS["sst2"].labels or ()

    @cached_property
    def sets(self) -> dict[str, TokenisedSet]:
        return sets.opened(documents.prepared(self.plan.data, self.plan.work), best_device())

    @property
    def kept(self) -> bool:
        return (self.folder / "config.json").exists()

    def _load(self, folder: Any) -> Any:
        vocabulary = self.plan.data / "vocab.txt"
        return load_classifier(str(folder), self.labels, vocabulary).model.to(best_device()).eval()

    @cached_property
    def model(self) -> Any:
        return self._load(self.folder)

    def fine_tuned(self) -> dict[str, Any]:
        """Fine-tune on documents of all lengths, from the experiment's model of sentences."""
        sentences = ExperimentRun(self.plan, self.experiment, self.say)
        if not sentences.kept:
            sentences.fine_tuned()
        model = self._load(self.plan.model(self.experiment))
        extend_positions(model, max(documents.LENGTHS))
        recipe = replace(RECIPE, seed=self.experiment.seed)
        outcome = sentences.train(model, self.sets["train"], self.sets["held"], recipe, "long")
        with replacing_folder(self.folder) as folder:
            model.save_pretrained(folder)
        return {"held": outcome.score, "history": outcome.history}

    def at_length(self, n: int) -> dict[str, Any]:
        """Float accuracy at n, and every form's difference from it and KL."""
        dev = self.sets[f"dev{n}"]
        batch = max(1, LOGITS // n**2)
        answers = predictions(self.model, dev, batch)
        found: dict[str, Any] = {
            **reached(answers, dev.labels),
            "examples": {"documents": len(dev), "tokens": sum(dev.lengths)},
        }
        drawn = cache(partial(self._statistics, n, batch))
        for form in MEASURED:
            fitting = fitting_of(form, n)
            stats, measured = drawn(fitting.scale)
            options = {**FORMS[form], "objective": fitting.objective}
            try:
                table = search(stats, n, threads=1, **options).table
            except HccsError as refusal:  # a form that has no room for rows so long
                found[form] = {"refused": str(refusal)}
                continue
            logits = predictions(hccs.nn.attach(self.model, table), dev, batch)
            hccs.nn.detach(self.model)
            found[form] = {
                "accuracy": ACCURACY(logits, dev.labels),
                **points(logits, answers, dev.labels),
                "kl": [float(kl) for kl in fidelity(measured, table)[..., 0].reshape(-1)],
                **fitting.record,
            }
        return found

    def _statistics(self, n: int, batch: int, scale: str | None) -> tuple[HeadStatistics, HeadStatistics]:
        """Statistics of documents to calibrate on, and of as many dev documents at the same scales."""
        own = self.sets[f"calibration{n}"]
        others = self.sets[f"dev{n}"].at(range(len(own)))
        stats = hccs.nn.collect(self.model, list(own.batches(batch)), n=n, scale=scale)
        return stats, hccs.nn.collect(self.model, list(others.batches(batch)), n=n, scale=stats.scale)


def fitting_of(form: str, n: int) -> Fitting:
    """How a form of the table is fitted at n, as `hccs convert` does."""
    options = FORMS[form]
    return fitting_for(n, options.get("lines", 1), options.get("scores", "int16"))


def extend_positions(model: Any, most: int) -> None:
    """Give a BERT a table of positions for longer rows: its own rows repeated, to be trained."""
    embeddings = model.base_model.embeddings
    before = embeddings.position_embeddings
    if before.num_embeddings >= most:
        return
    longer = nn.Embedding(most, before.embedding_dim).to(before.weight.device)
    with torch.no_grad():
        longer.weight.copy_(before.weight[torch.arange(most) % before.num_embeddings])
    embeddings.position_embeddings = longer
    model.config.max_position_embeddings = most
    places = torch.arange(most, device=before.weight.device)[None]
    embeddings.register_buffer("position_ids", places, persistent=False)
    embeddings.register_buffer("token_type_ids", torch.zeros_like(places), persistent=False)


def in_order(lengths: Sequence[int]) -> list[int]:
    """Lengths in the order of importance.

    >>> in_order((128, 256, 512, 1024))
    [512, 1024, 256, 128]
    """
    return sorted(lengths, key=lambda n: (n < IMPORTANT, abs(n - IMPORTANT)))


def experiments(models: Sequence[str], seeds: int) -> Iterator[Experiment]:
    for model in MODELS:
        if model in models:
            yield from (Experiment(model, "sst2", seed) for seed in range(seeds))
