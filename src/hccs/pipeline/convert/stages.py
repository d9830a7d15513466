"""`hccs convert`: collect, calibrate, mend or retrain, evaluate, quantise, lower, save; stages resume."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hccs.nn
from hccs._files import atomic
from hccs.calibration import HeadStatistics, fidelity, search
from hccs.calibration.searching import GRANULARITIES
from hccs.errors import HccsError, ParameterError
from hccs.nn import IntegerPlan
from hccs.nn.integer import NORMALISATION
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.pipeline.convert.forms import LineForm, chosen_form
from hccs.pipeline.convert.reconstructing import Judge, mend, refine
from hccs.pipeline.convert.steps import (
    RETRAINING,
    SCALES,
    evaluate_modes,
    plan_whole,
    retrain,
    train_whole,
)
from hccs.pipeline.convert.whole import score_whole, write_whole
from hccs.pipeline.data import tasks
from hccs.pipeline.data.held import HELD_BACK, hold_back
from hccs.pipeline.data.problems import CLASSIFICATION
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.metrics import ACCURACY, Function, agreement_for, metric_for
from hccs.pipeline.models import (
    Loaded,
    best_device,
    float_accuracy,
    load_classifier,
    no_labels,
    predictions,
)
from hccs.pipeline.runs.folder import RunFolder
from hccs.pipeline.runs.processes import state
from hccs.pipeline.scores import difference, measured
from hccs.pipeline.training import Outcome, Recipe, train

FINE_TUNING = Recipe(epochs=3, learning_rate=1e-4)

INTEGER = ("whole", "attention")
"""What of the model becomes integers."""

ANSWERS = "answers.npy"
"""The logits of the training model on the dev set, beside the weights it was saved with."""


@dataclass(frozen=True)
class ConversionSettings:
    """What to convert, on what data, and how.

    `labels` are the data's in the order of the model's outputs, where its own names do not tell; `new_head`
    replaces the head that it has. With `integer` "whole" the model is trained as its integer program
    computes, and lowered to it; with "attention" it is retrained with HCCS and floats around it. Without
    `retraining` the calibrated model is delivered, with `reconstruct` after its weights were mended in closed
    form on `reconstruction_sentences`. The labels of an unlabelled task are the float model's answers.
    `lines` and `scores` are those of `chosen_form`, which chooses what is None. `metric` is a name, or
    `module:function`.
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
    reconstruct: bool = True
    reconstruction_sentences: int = 2048
    seed: int = 0
    held_back: int = HELD_BACK
    fine_tuning: Recipe = field(default=FINE_TUNING)
    retraining: Recipe | None = field(default=RETRAINING)
    integer: str = "whole"
    metric: str = ""
    lines: int | None = None
    scores: str | None = None

    @property
    def form(self) -> LineForm:
        """Of HCCS: what is not given depends on n and on whether there is retraining."""
        return chosen_form(self.task.n, self.lines, self.scores, self.retraining is not None)

    @property
    def reconstructs(self) -> bool:
        """Whether weights are mended in closed form: training does more where there is any."""
        return self.reconstruct and self.retraining is None

    def __post_init__(self) -> None:
        Mode(self.mode)
        if self.task.n < 1:
            raise ParameterError("n of at least 1", str(self.task.n), "Raise --n.")
        Region(self.task.n, self.form.sum_bits)
        if self.granularity not in GRANULARITIES:
            raise ParameterError(
                f"granularity {', '.join(GRANULARITIES)}",
                repr(self.granularity),
                "Choose another --granularity; the paper uses head.",
            )
        if self.integer not in INTEGER:
            raise ParameterError(
                f"integer {' or '.join(INTEGER)}", repr(self.integer), "Choose another --integer."
            )
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        if self.reconstruction_sentences < 1:
            raise ParameterError(
                "at least one sentence to mend weights on",
                str(self.reconstruction_sentences),
                "2048 are plenty.",
            )
        if self.seed < 0:
            raise ParameterError("seed of at least 0", str(self.seed), "Choose another --seed.")


class Conversion:
    """The stages of one run; data and models are loaded when a stage that is not done yet asks for them."""

    def __init__(
        self,
        settings: ConversionSettings,
        out: str | Path,
        say: Callable[[str], None] = print,
        *,
        metric: Function | None = None,
        marker: str = "settings.json",
    ) -> None:
        self.settings, self.say = settings, say
        self.metric = metric_for(settings.task.problem, metric or settings.metric)
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
            problem=settings.task.problem,
        )
        if settings.task.unlabelled and not self._start.has_head:
            raise no_labels(settings.model)
        self.data = data.numbered_as(self._start.labels)
        if not self.data.dev.labelled and not (metric or settings.metric):
            self.metric = agreement_for(settings.task.problem)
        rest, held = hold_back(self.data.train, settings.held_back)
        self.sets = {
            "train": self._tokenised(rest),
            "held": self._tokenised(held),
            "dev": self._tokenised(self.data.dev),
            "calibration": self._tokenised(rest.subset(settings.sentences, settings.seed)),
        }
        self.folder = RunFolder(out, asdict(settings), marker)

    def _load(self, name: str) -> Loaded:
        """A model that an earlier stage has saved."""
        torch.manual_seed(self.settings.seed)
        return load_classifier(str(self.path / name), self.data.labels, problem=self.settings.task.problem)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._start.tokenizer, self.n).to(best_device())

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def stages(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """The stages of this run in order; each reads what those before it have saved."""
        whole, trained = self.settings.integer == "whole", self.settings.retraining is not None
        return {
            "float": self._float,
            "collect": self._collect,
            "calibrate": self._calibrate,
            **({"reconstruct": self._reconstruct} if self.settings.reconstructs else {}),
            "without retraining": self._without,
            **({"whole without training": self._whole_without} if whole and trained else {}),
            **({"retrain": self._retrain} if trained else {}),
            "integer": self._integer,
            **({"whole": self._whole} if whole else {}),
            "save": self._save,
        }

    def run(self) -> dict[str, Any]:
        """All stages; returns the results."""
        with self.folder:
            if self.settings.task.unlabelled and not self.folder.done("save"):
                self._ask_the_float_model()
            for name, work in self.stages.items():
                if self.folder.done(name):
                    self.say(f"{name}: done before")
                    continue
                self.say(f"{name} …")
                result = self.folder.stage(name, work)
                reached = result.get(self.metric.name)
                shown = "" if reached is None else f"{self.metric.name} {reached:.4f}, "
                self.say(f"{name}: {shown}{result['seconds']:.1f} s")
        return self.folder.results

    def _ask_the_float_model(self) -> None:
        """Label what nobody has labelled by the float model's answers, which training then follows."""
        model = hccs.nn.detach(self._start.model.to(best_device()))
        unlabelled = [] if self.settings.retraining is None else ["train", "held"]
        for name in [*unlabelled, *([] if self.data.dev.labelled else ["dev"])]:
            answers = predictions(model, self.sets[name], progress="the float model's answers")
            labelled = self.sets[name].labelled_by(answers)
            self.sets[name] = labelled.with_predictions(answers) if name == "train" else labelled

    def _float(self) -> dict[str, Any]:
        """Score the float model, fine-tuning it first if it came without a head for the problem."""
        model = hccs.nn.detach(self._start.model.to(best_device()))  # it may have been converted before
        if not self._start.has_head:
            why = "its head is replaced" if self.settings.new_head else "the model has no such head"
            self.say(f"  {why}: fine-tuning it on the task")
            recipe = replace(self.settings.fine_tuning, seed=self.settings.seed)
            where = self.path / "checkpoints" / "float"
            train(model, self.sets["train"], self.sets["held"], recipe, where, metric=self.metric)
        self._keep(model, "float")
        if self.metric == ACCURACY and self.settings.task.problem == CLASSIFICATION:
            float_accuracy(model, self.sets["dev"], self.data.labels)  # warns of labels in another order
        reached = measured(self.metric, predictions(model, self.sets["dev"]), self.sets["dev"].labels)
        return {
            self.metric.name: reached.value,
            "error": reached.error,
            "metric": self.metric.name,
            "fine_tuned": not self._start.has_head,
            "labels": list(self.data.labels),
        }

    @cached_property
    def _float_answers(self) -> torch.Tensor:
        """The float model's logits on dev."""
        model = self._load("float").model.to(best_device()).eval()
        return predictions(hccs.nn.detach(model), self.sets["dev"])

    def _reached(self, answers: torch.Tensor) -> dict[str, Any]:
        """The dev score of a model's answers and its difference from the float model, with their errors."""
        labels, base = self.sets["dev"].labels, self._float_answers
        own = measured(self.metric, answers, labels)
        against = difference(self.metric, answers, base.to(answers.device), labels)
        return {
            self.metric.name: own.value,
            "error": own.error,
            "against_float": [against.value, against.error],
        }

    def _score(self, model: Any) -> dict[str, Any]:
        return self._reached(predictions(model, self.sets["dev"]))

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
        return self._share(self.sets["calibration"])

    def _share(self, sentences: TokenisedSet) -> list[dict[str, Any]]:
        processes = state().num_processes
        batches = list(sentences.batches(min(64, -(-len(sentences) // processes))))
        return batches[state().process_index :: processes]

    def _collect(self) -> dict[str, Any]:
        stats = hccs.nn.collect(self.model, self._calibration_share(), n=self.n)
        if state().is_main_process:
            stats.save(self.path / "statistics.safetensors")
        return {"sentences": len(self.sets["calibration"]), "rows": int(stats.rows.sum())}

    def _calibrate(self) -> dict[str, Any]:
        stats = HeadStatistics.load(self.path / "statistics.safetensors")
        form = self.settings.form
        self.say(f"  {form}{form.reason(self.settings.retraining is not None)}")
        found = search(stats, self.n, self.settings.granularity, self.settings.mode, **asdict(form))
        table = found.table
        step: dict[str, Any] = {}
        if self._refines and not self.settings.reconstructs:
            batches = list(self.sets["calibration"].batches(64))
            step = {"refined": refine(self.model, None, table, batches, self._judge)}
            table = hccs.nn.current_table(self.model)
            hccs.nn.detach(self.model)
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
        return {"kl": found.kl, **asdict(form), **step, "heads": heads}

    @cached_property
    def table(self) -> ParamTable:
        """The calibrated table."""
        return ParamTable.load(self.path / "table.hccs.safetensors")

    @property
    def _refines(self) -> bool:
        return self.settings.refine and self.settings.granularity == "head"

    @cached_property
    def _mending(self) -> list[dict[str, Any]]:
        """This process's batches of the sentences on which weights are mended."""
        chosen = random.Random(self.settings.seed).sample(
            range(len(self.sets["train"])),
            min(self.settings.reconstruction_sentences, len(self.sets["train"])),
        )
        return self._share(self.sets["train"].at(chosen))

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self.model, self.sets["held"])

    def _reconstruct(self) -> dict[str, Any]:
        """The float weights mended for HCCS, then theta refined; what later stages go on with."""
        model = hccs.nn.attach(self._load("float").model.to(best_device()).eval(), self.table)
        try:
            found = mend(model, self.model, self._mending, self._judge)
        except HccsError as error:
            self.say(f"  weights stay as they are: {error}")
            found = {"refused": str(error)}
        if self._refines:
            batches = list(self.sets["calibration"].batches(64))
            found["refined"] = refine(model, self.model, self.table, batches, self._judge)
        self._keep(model, "reconstructed")
        return found

    def _calibrated(self) -> tuple[Any, ParamTable]:
        """The model that no labels have changed, and its table."""
        if not self.settings.reconstructs:
            return self.model, self.table
        model = hccs.nn.restore(self._load("reconstructed").model.to(best_device())).eval()
        return model, hccs.nn.current_table(model)

    def _without(self) -> dict[str, Any]:
        model, table = self._calibrated()
        scores = evaluate_modes(model, table, self.sets["dev"], metric=self.metric)
        reached = self._score(model)
        hccs.nn.detach(model)
        return {**reached, "modes": scores}

    def _whole_without(self) -> dict[str, Any]:
        """The float weights all in integers: the score of the model that is trained, before it is."""
        try:
            plan = plan_whole(self.model, self.table, self.sets["calibration"])
            plan.lower()
        except HccsError as error:
            hccs.nn.detach(self.model)
            return self._refused(error)
        with plan.training():
            return self._score(self.model)

    def _refused(self, error: HccsError) -> dict[str, Any]:
        """Why a model has no integer form: another family, or numbers that no integer could hold."""
        self.say(f"  not all in integers: {error}")
        return {"refused": str(error)}

    @property
    def _trains_whole(self) -> bool:
        """Whether training computes in integers throughout."""
        before = self.folder.results["stages"].get("whole without training", {"refused": ""})
        return "refused" not in before

    def _retrain(self) -> dict[str, Any]:
        assert self.settings.retraining is not None
        recipe = replace(self.settings.retraining, seed=self.settings.seed)
        if self.settings.task.unlabelled:
            recipe = replace(recipe, distil=1.0)
        where = self.path / "checkpoints" / "retrain"
        if self._trains_whole:
            outcome, answers = self._train_whole(recipe, where)
        else:
            outcome = retrain(
                self.model,
                self.table,
                self.sets["train"],
                self.sets["held"],
                self.sets["calibration"],
                recipe,
                where,
                granularity=self.settings.granularity,
                metric=self.metric,
            )
            self._keep(self.model, "retrained")
            answers = predictions(self.model, self.sets["dev"])
        table = hccs.nn.current_table(self.model)
        scores = evaluate_modes(self.model, table, self.sets["dev"], metric=self.metric)
        reached = self._reached(answers)
        return {**reached, "held_back": outcome.score, "history": outcome.history, "modes": scores}

    def _train_whole(self, recipe: Recipe, where: Path) -> tuple[Outcome, torch.Tensor]:
        """Train as the program computes, and write it with the scales of the training."""
        plan = plan_whole(self.model, self.table, self.sets["calibration"])
        train_set, held = self.sets["train"], self.sets["held"]
        outcome = train_whole(plan, train_set, held, recipe, where, metric=self.metric)
        with plan.training():
            answers = predictions(self.model, self.sets["dev"])
        self._keep(hccs.nn.attach(self.model, self.table), "retrained")
        if state().is_main_process:
            np.save(self.path / "retrained" / ANSWERS, answers.cpu().numpy())
        write_whole(plan.lower("model"), self.path)
        return outcome, answers

    def _to_deliver(self) -> Any:
        """The retrained model as its stage saved it; without retraining the calibrated one."""
        if self.settings.retraining is None:
            return hccs.nn.attach(*self._calibrated()).eval()
        return hccs.nn.restore(self._load("retrained").model.to(best_device()))

    def _integer(self) -> dict[str, Any]:
        """Scales of the model's q, k and v, saved with it; its accuracy with attention in integers."""
        model = self._to_deliver()
        table = hccs.nn.calibrate_operands(model, hccs.nn.current_table(model), self._calibration_share())
        self._keep(hccs.nn.attach(model, table), "model")
        if table.mode not in NORMALISATION:
            return {}
        hccs.nn.attach(model, table, backend="integer")
        return self._score(model)

    def _delivered(self) -> Any:
        """The converted model as it was saved, on float q, k and v."""
        return hccs.nn.restore(self._load("model").model.to(best_device()), backend="float").eval()

    def _whole(self) -> dict[str, Any]:
        """The delivered model all in integers, where it has such a form."""
        before = self.folder.results["stages"].get("whole without training", {})
        if "refused" in before:
            return {"refused": before["refused"]}
        trained, mended = None, {}
        if self._trains_whole:
            trained = torch.from_numpy(np.load(self.path / "retrained" / ANSWERS))
        else:
            try:
                mended = self._lower_untrained()
            except HccsError as error:
                return self._refused(error)
        scored = score_whole(self.path, self._delivered(), self.sets["dev"], self.metric, trained)
        return {**scored, **({"reconstructed": mended} if mended else {})}

    def _lower_untrained(self) -> dict[str, Any]:
        """Write the delivered model all in integers, its weights mended once more for their rounding.

        Scales of values come first and stay; those of weights are the mended weights' own.
        """
        model = self._delivered()
        batches = list(self.sets["calibration"].batches(64))
        plan = IntegerPlan.measured(model, hccs.nn.current_table(model), batches, SCALES)
        plan.lower()  # refuses before anything is mended
        found: dict[str, Any] = {}
        if self.settings.reconstructs:
            with plan.training():
                found = mend(model, self.model, self._mending, self._judge)
        write_whole(plan.lower("model"), self.path)
        return found

    def _save(self) -> dict[str, Any]:
        """The delivered model's table as a file beside it, and its KL; what only stages needed goes."""
        model = self._delivered()
        table = hccs.nn.current_table(model)
        stats = hccs.nn.collect(model, self._calibration_share(), n=self.n, scale=table.scale)
        if state().is_main_process:
            table.save(self.path / CONVERTED)
            atomic.replace(self.path / "model.hccs.json", table.to_json().encode())
            for needless in ("checkpoints", "retrained", "reconstructed"):
                shutil.rmtree(self.path / needless, ignore_errors=True)
        return {
            "model": "model",
            "table": CONVERTED,
            "mode": table.mode.value,
            "kl": float(fidelity(stats, table)[..., 0].mean()),
        }


def convert(
    settings: ConversionSettings,
    out: str | Path,
    say: Callable[[str], None] = print,
    *,
    metric: Function | None = None,
) -> dict[str, Any]:
    """Convert a model as the settings say; returns the content of `results.json`.

    A `metric` takes the place of the one that the settings name.
    """
    return Conversion(settings, out, say, metric=metric).run()
