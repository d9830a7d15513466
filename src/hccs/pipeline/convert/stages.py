"""`hccs convert`: collect, calibrate, evaluate, retrain, evaluate, quantise, lower, save; stages resume."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import hccs.nn
from hccs._files import atomic
from hccs.calibration import HeadStatistics, fidelity, search
from hccs.calibration.searching import GRANULARITIES
from hccs.errors import ParameterError
from hccs.nn.integer import NORMALISATION
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.pipeline.convert.steps import RETRAINING, evaluate_modes, retrain
from hccs.pipeline.convert.whole import write_whole
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.models import Loaded, accuracy, best_device, float_accuracy, load_classifier
from hccs.pipeline.runs.folder import RunFolder
from hccs.pipeline.runs.processes import state
from hccs.pipeline.training import Recipe, train

FINE_TUNING = Recipe(epochs=3, learning_rate=1e-4)


@dataclass(frozen=True)
class ConversionSettings:
    """What to convert, on what data, and how.

    `labels` are the data's in the order of the model's outputs, where its own names do not tell; `new_head`
    replaces the classification head that it has. Without `retraining` the calibrated model is delivered.
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
    seed: int = 0
    fine_tuning: Recipe = field(default=FINE_TUNING)
    retraining: Recipe | None = field(default=RETRAINING)

    def __post_init__(self) -> None:
        Mode(self.mode)
        if self.task.n < 1:
            raise ParameterError("n of at least 1", str(self.task.n), "Raise --n.")
        Region(self.task.n)
        if self.granularity not in GRANULARITIES:
            raise ParameterError(
                f"granularity {', '.join(GRANULARITIES)}",
                repr(self.granularity),
                "Choose another --granularity; the paper uses head.",
            )
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        if self.seed < 0:
            raise ParameterError("seed of at least 0", str(self.seed), "Choose another --seed.")


class Conversion:
    """The stages of one run; data and models are loaded when a stage that is not done yet asks for them."""

    def __init__(
        self, settings: ConversionSettings, out: str | Path, say: Callable[[str], None] = print
    ) -> None:
        self.settings, self.say = settings, say
        self.n = settings.task.n
        # Read before anything is written: a run on bad data leaves nothing behind.
        data = tasks.load(settings.task, settings.data)
        torch.manual_seed(settings.seed)
        self._start = load_classifier(
            settings.model,
            data.labels,
            settings.vocabulary,
            order=settings.labels,
            new_head=settings.new_head,
        )
        self.data = data.numbered_as(self._start.labels)
        self.sets = {
            "train": self._tokenised(self.data.train),
            "dev": self._tokenised(self.data.dev),
            "calibration": self._tokenised(self.data.train.subset(settings.sentences, settings.seed)),
        }
        self.folder = RunFolder(out, asdict(settings))

    def _load(self, name: str) -> Loaded:
        """A model that an earlier stage has saved."""
        torch.manual_seed(self.settings.seed)
        return load_classifier(str(self.path / name), self.data.labels)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._start.tokenizer, self.n).to(best_device())

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def stages(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """The stages of this run in order; each reads what those before it have saved."""
        retraining = {"retrain": self._retrain} if self.settings.retraining else {}
        return {
            "float": self._float,
            "collect": self._collect,
            "calibrate": self._calibrate,
            "without retraining": self._without,
            **retraining,
            "integer": self._integer,
            "whole": self._whole,
            "save": self._save,
        }

    def run(self) -> dict[str, Any]:
        """All stages; returns the results."""
        with self.folder:
            for name, work in self.stages.items():
                if self.folder.done(name):
                    self.say(f"{name}: done before")
                    continue
                self.say(f"{name} …")
                result = self.folder.stage(name, work)
                score = f"accuracy {result['accuracy']:.4f}, " if "accuracy" in result else ""
                self.say(f"{name}: {score}{result['seconds']:.1f} s")
        return self.folder.results

    def _float(self) -> dict[str, Any]:
        """Score the float model, fine-tuning it first if it came without a classification head."""
        model = hccs.nn.detach(self._start.model.to(best_device()))  # it may have been converted before
        if not self._start.has_head:
            why = "its head is replaced" if self.settings.new_head else "the model has no classification head"
            self.say(f"  {why}: fine-tuning it on the task")
            recipe = replace(self.settings.fine_tuning, seed=self.settings.seed)
            train(model, self.sets["train"], self.sets["dev"], recipe, self.path / "checkpoints" / "float")
        self._keep(model, "float")
        return {
            "accuracy": float_accuracy(model, self.sets["dev"], self.data.labels),
            "fine_tuned": not self._start.has_head,
            "labels": list(self.data.labels),
        }

    def _keep(self, model: Any, name: str) -> None:
        """Write a model's folder, which appears whole or not at all."""
        if not state().is_main_process:
            return
        fresh, folder = self.path / f".{name}.partial", self.path / name
        for left_over in (fresh, folder):  # of a stage that was interrupted
            shutil.rmtree(left_over, ignore_errors=True)
        model.save_pretrained(fresh)
        self._start.tokenizer.save_pretrained(fresh)
        os.replace(fresh, folder)

    @cached_property
    def model(self) -> Any:
        """The float model, which later stages convert in place."""
        return self._load("float").model.to(best_device()).eval()

    def _calibration_share(self) -> list[dict[str, Any]]:
        """This process's batches of the calibration sentences."""
        processes, sentences = state().num_processes, self.sets["calibration"]
        batches = list(sentences.batches(min(64, -(-len(sentences) // processes))))
        return batches[state().process_index :: processes]

    def _collect(self) -> dict[str, Any]:
        stats = hccs.nn.collect(self.model, self._calibration_share(), n=self.n)
        if state().is_main_process:
            stats.save(self.path / "statistics.safetensors")
        return {"sentences": len(self.sets["calibration"]), "rows": int(stats.rows.sum())}

    def _calibrate(self) -> dict[str, Any]:
        stats = HeadStatistics.load(self.path / "statistics.safetensors")
        found = search(stats, self.n, self.settings.granularity, self.settings.mode)
        table = found.table
        if self.settings.refine and self.settings.granularity == "head":
            table = hccs.nn.refine(self.model, table, list(self.sets["calibration"].batches(64)))
        if state().is_main_process:
            table.save(self.path / "table.hccs.safetensors")
        heads = [
            {
                "layer": h.layer,
                "head": h.head,
                "kl": h.kl,
                "kl_renormalised": h.kl_renormalised,
                "entropy": h.entropy,
            }
            for h in found.heads
        ]
        return {"kl": found.kl, "heads": heads}

    @cached_property
    def table(self) -> ParamTable:
        """The calibrated table."""
        return ParamTable.load(self.path / "table.hccs.safetensors")

    def _without(self) -> dict[str, Any]:
        scores = evaluate_modes(self.model, self.table, self.sets["dev"])
        hccs.nn.detach(self.model)
        return {"accuracy": scores[self.settings.mode], "modes": scores}

    def _retrain(self) -> dict[str, Any]:
        assert self.settings.retraining is not None
        recipe = replace(self.settings.retraining, seed=self.settings.seed)
        outcome = retrain(
            self.model,
            self.table,
            self.sets["train"],
            self.sets["dev"],
            self.sets["calibration"],
            recipe,
            self.path / "checkpoints" / "retrain",
            granularity=self.settings.granularity,
        )
        self._keep(self.model, "retrained")
        scores = evaluate_modes(self.model, hccs.nn.current_table(self.model), self.sets["dev"])
        return {"accuracy": outcome.accuracy, "history": outcome.history, "modes": scores}

    def _to_deliver(self) -> Any:
        """The retrained model as its stage saved it; without retraining the float one with its table."""
        if self.settings.retraining is None:
            return hccs.nn.attach(self._load("float").model.to(best_device()).eval(), self.table)
        return hccs.nn.restore(self._load("retrained").model.to(best_device()))

    def _integer(self) -> dict[str, Any]:
        """Scales of the model's q, k and v, saved with it; its accuracy with attention in integers."""
        model = self._to_deliver()
        table = hccs.nn.calibrate_operands(model, hccs.nn.current_table(model), self._calibration_share())
        self._keep(hccs.nn.attach(model, table), "model")
        if table.mode not in NORMALISATION:
            return {}
        hccs.nn.attach(model, table, backend="integer")
        return {"accuracy": accuracy(model, self.sets["dev"])}

    def _delivered(self) -> Any:
        """The converted model as it was saved, on float q, k and v."""
        return hccs.nn.restore(self._load("model").model.to(best_device()), backend="float").eval()

    def _whole(self) -> dict[str, Any]:
        """The delivered model all in integers, where it has such a form."""
        return write_whole(self._delivered(), self.sets["calibration"], self.sets["dev"], self.path, self.say)

    def _save(self) -> dict[str, Any]:
        """The delivered model's table as a file beside it, and its KL; what only stages needed goes."""
        model = self._delivered()
        table = hccs.nn.current_table(model)
        stats = hccs.nn.collect(model, self._calibration_share(), n=self.n, scale=table.scale)
        if state().is_main_process:
            table.save(self.path / CONVERTED)
            atomic.replace(self.path / "model.hccs.json", table.to_json().encode())
            for needless in ("checkpoints", "retrained"):
                shutil.rmtree(self.path / needless, ignore_errors=True)
        return {
            "model": "model",
            "table": CONVERTED,
            "mode": table.mode.value,
            "kl": float(fidelity(stats, table)[..., 0].mean()),
        }


def convert(
    settings: ConversionSettings, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Convert a model as the settings say; returns the content of `results.json`."""
    return Conversion(settings, out, say).run()
