"""`hccs convert`: collect, calibrate, evaluate, retrain, evaluate, quantise q, k, v, save; stages resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import hccs.nn
from hccs._files import safetensors as _safetensors
from hccs.calibration import HeadStatistics, search
from hccs.errors import ParameterError
from hccs.nn.integer import NORMALISATION
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.pipeline.convert.steps import RETRAINING, evaluate_modes, retrain
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.models import Loaded, accuracy, best_device, load_classifier
from hccs.pipeline.runs.folder import RunFolder
from hccs.pipeline.runs.processes import state
from hccs.pipeline.training import Recipe, train

FINE_TUNING = Recipe(epochs=3, learning_rate=1e-4)


@dataclass(frozen=True)
class Settings:
    """What to convert, on what data, and how."""

    model: str
    task: tasks.Task
    data: str | None = None
    vocabulary: str | None = None
    granularity: str = "head"
    mode: str = "i16_div"
    sentences: int = 512
    refine: bool = True
    seed: int = 0
    fine_tuning: Recipe = field(default=FINE_TUNING)
    retraining: Recipe = field(default=RETRAINING)

    def checked(self) -> Settings:
        """Itself, or the first thing that no run could do."""
        Mode(self.mode)
        Region(self.task.n)
        if self.granularity not in ("head", "layer", "global"):
            raise ParameterError(
                "granularity head, layer or global", repr(self.granularity), "The paper uses head."
            )
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        return self


class Conversion:
    """The stages of one run; data and models are loaded when a stage that is not done yet asks for them."""

    def __init__(self, settings: Settings, out: str | Path, say: Callable[[str], None] = print) -> None:
        self.settings, self.say = settings.checked(), say
        self.n = settings.task.n
        # Read before anything is written: a run on bad data leaves nothing behind.
        self.data = tasks.load(settings.task, settings.data)
        self._start = self._load(settings.model)
        self.sets = {
            "train": self._tokenised(self.data.train),
            "dev": self._tokenised(self.data.dev),
            "calibration": self._tokenised(self.data.train.subset(settings.sentences, settings.seed)),
        }
        self.folder = RunFolder(out, asdict(settings))

    def _load(self, name: str) -> Loaded:
        import torch

        torch.manual_seed(self.settings.seed)
        vocabulary = self.settings.vocabulary if name == self.settings.model else None
        return load_classifier(name, self.data.labels, vocabulary)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._start.tokenizer, self.n).to(best_device())

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    def run(self) -> dict[str, Any]:
        """All stages; returns the results."""
        stages = {
            "float": self._float,
            "collect": self._collect,
            "calibrate": self._calibrate,
            "without retraining": self._without,
            "retrain": self._retrain,
            "integer": self._integer,
            "save": self._save,
        }
        for name, work in stages.items():
            self.say(f"{name}: done before" if self.folder.done(name) else f"{name} …")
            self.folder.stage(name, work)
        return self.folder.results

    def _float(self) -> dict[str, Any]:
        """Score the float model, fine-tuning it first if it came without a classification head."""
        model = hccs.nn.detach(self._start.model.to(best_device()))  # it may have been converted before
        if not self._start.has_head:
            self.say("  the model has no classification head: fine-tuning it on the task")
            recipe = replace(self.settings.fine_tuning, seed=self.settings.seed)
            train(model, self.sets["train"], self.sets["dev"], recipe, self.path / "checkpoints" / "float")
        self._keep(model, "float")
        return {"accuracy": accuracy(model, self.sets["dev"]), "fine_tuned": not self._start.has_head}

    def _keep(self, model: Any, name: str) -> None:
        if state().is_main_process:
            model.save_pretrained(self.path / name)
            self._start.tokenizer.save_pretrained(self.path / name)

    @cached_property
    def model(self) -> Any:
        """The float model, which later stages convert in place."""
        return self._load(str(self.path / "float")).model.to(best_device()).eval()

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
        self._keep(self.model, "model")
        scores = evaluate_modes(self.model, hccs.nn.current_table(self.model), self.sets["dev"])
        return {"accuracy": outcome.accuracy, "history": outcome.history, "modes": scores}

    def _integer(self) -> dict[str, Any]:
        """Scales of the retrained model's q, k and v; its accuracy with attention in integers."""
        model = hccs.nn.restore(self._load(str(self.path / "model")).model.to(best_device()))
        table = hccs.nn.calibrate_operands(model, hccs.nn.current_table(model), self._calibration_share())
        self._keep(hccs.nn.attach(model, table), "model")
        if table.mode not in NORMALISATION:
            return {}
        hccs.nn.attach(model, table, backend="integer")
        return {"accuracy": accuracy(model, self.sets["dev"])}

    def _save(self) -> dict[str, Any]:
        """The retrained model was saved by its stage; its table is put beside it as a file."""
        restored = hccs.nn.restore(self._load(str(self.path / "model")).model)
        table = hccs.nn.current_table(restored)
        if state().is_main_process:
            table.save(self.path / CONVERTED)
            _safetensors.replace(self.path / "model.hccs.json", table.to_json().encode())
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        return {"model": "model", "table": CONVERTED}


def convert(settings: Settings, out: str | Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Convert a model as the settings say; returns the content of `results.json`."""
    return Conversion(settings, out, say).run()
