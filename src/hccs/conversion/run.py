"""One conversion: its data, the models that stages have saved, its dev scores, and the order of its work."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hccs.nn
from hccs._files.atomic import replacing_folder
from hccs.calibration.two_lines import Fitting, fitting_for
from hccs.conversion.converted import Converted
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.problems import IGNORED, RERANK, TOKENS, VALUES
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.fingerprints import of_examples, of_weights, require_same
from hccs.conversion.metrics import Function, agreement_for, metric_for
from hccs.conversion.models import (
    Loaded,
    best_device,
    default_length,
    load_classifier,
    longest_row,
    no_labels,
    predictions,
    require_fit,
)
from hccs.conversion.results import AnswersByLabel, ChangedAnswer, Reached, stages_of
from hccs.conversion.runs import state
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.scores import difference, measured
from hccs.conversion.settings import Settings
from hccs.conversion.stages import CALIBRATED, Judge, stages_for
from hccs.numbers.table import ParamTable

MOST_LABELS = 12
"""Labels up to which a confusion matrix is noted."""

MOST_CHANGED = 50
"""Changed answers that are noted one by one."""

LONGEST_TEXT = 160
"""Characters that are noted of a text whose answer changed."""


def with_length(
    task: tasks.Task,
    n: int | None,
    data: str | None,
    model: str,
    vocabulary: str | None,
    say: Callable[[str], None],
) -> tasks.Task:
    """A task with the longest sequence that was asked for, or with one that its texts suggest."""
    if n is not None:
        return replace(task, n=n)
    found = default_length(task, data, model, vocabulary)
    if found.n != task.n:
        say(found.sentence)
    return replace(task, n=found.n)


def convert(
    settings: Settings,
    out: str | Path,
    say: Callable[[str], None] = print,
    *,
    metric: Function | None = None,
    marker: str = "settings.json",
) -> Converted:
    """Convert a model as the settings say and write its report; an interrupted run is resumed.

    A `metric` takes the place of the one that the settings name. `marker` is a file that the caller has
    written into the folder before.
    """
    Run(settings, out, say, metric=metric, marker=marker).run()
    finish(out, say)
    return Converted(Path(out))


class Run:
    """Data and models of one run; models are loaded when a stage that is not done yet asks for them."""

    def __init__(
        self,
        settings: Settings,
        out: str | Path,
        say: Callable[[str], None] = print,
        *,
        metric: Function | None = None,
        marker: str = "settings.json",
    ) -> None:
        self.settings, self.say = settings, say
        self.metric = metric_for(settings.task.problem, metric or settings.metric)
        # Read before anything is written: a run on bad data leaves nothing behind.
        data = tasks.load(settings.task, settings.data)
        torch.manual_seed(settings.seed)
        self.start = load_classifier(
            settings.model,
            data.labels,
            settings.vocabulary,
            order=settings.labels,
            new_head=settings.new_head,
            problem=settings.task.problem,
        )
        self.n = longest_row(self.start.model, settings.task)
        if settings.task.unlabelled and not self.start.has_head:
            raise no_labels(settings.model)
        self.data = data.numbered_as(self.start.labels)
        if not self.data.dev.labelled and not (metric or settings.metric):
            self.metric = agreement_for(settings.task.problem)
        rest, held_back = hold_out(self.data.train, settings.held_back)
        self.sets = {
            "train": self._tokenised(rest),
            "held_back": self._tokenised(held_back),
            "dev": self._tokenised(self.data.dev),
            "calibration": self._tokenised(rest.subset(settings.sentences, settings.seed)),
        }
        require_fit(self.start.model, self.sets.values())
        self.fingerprints = {
            "weights": of_weights(self.start.model, with_head=self.start.has_head),
            "examples": of_examples(self.sets[name] for name in ("train", "held_back", "dev")),
        }
        self.folder = RunFolder(out, asdict(settings), marker)
        self.found: dict[str, Any] = {}
        """The results of the stages that are done."""

    @property
    def path(self) -> Path:
        return self.folder.path

    def run(self) -> None:
        with self.folder:
            self.found = stages_of(self.folder.record)
            begun = self.found.get("float_model")
            require_same(begun.fingerprints if begun else {}, self.fingerprints, self.path)
            if self.settings.task.unlabelled and "save" not in self.found:
                self._ask_the_float_model()
            for name, stage in stages_for(self.settings).items():
                if name in self.found:
                    self.say(f"{name}: done before")
                    continue
                self.say(f"{name} …")
                self._do(name, stage)

    def _do(self, name: str, stage: Callable[[Run], Any]) -> None:
        def work() -> Any:
            with _noted_warnings() as noted:
                result = stage(self)
            return replace(result, warnings=tuple(noted))

        self.folder.stage(name, work)
        self.found = stages_of(self.folder.record)
        found, seconds = self.found[name], self.folder.record.seconds[name]
        score = getattr(found, "score", None) or getattr(getattr(found, "reached", None), "score", None)
        shown = "" if score is None else f"{self.metric.name} {score.value:.4f}, "
        self.say(f"{name}: {shown}{seconds:.1f} s")

    def _ask_the_float_model(self) -> None:
        """Label the unlabelled texts by the float model's answers, which training then follows."""
        model = hccs.nn.detach(self.start.model.to(best_device()))
        unlabelled = [] if self.settings.retraining is None else ["train", "held_back"]
        for name in [*unlabelled, *([] if self.data.dev.labelled else ["dev"])]:
            answers = predictions(model, self.sets[name], progress="the float model's answers")
            labelled = self.sets[name].labelled_by(answers)
            self.sets[name] = labelled.with_predictions(answers) if name == "train" else labelled

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self.start.tokenizer, self.n).to(best_device())

    @property
    def fitting(self) -> Fitting:
        """How theta is fitted to rows as long as the model's."""
        return fitting_for(self.n, self.settings.form.lines, self.settings.form.scores)

    # --- models -------------------------------------------------------------------------------------------

    def keep(self, model: Any, name: str, arrays: Mapping[str, Any] | None = None) -> None:
        """Write a model's folder, with arrays beside it; it appears complete or not at all."""
        if not state().is_main_process:
            return
        with replacing_folder(self.path / name) as folder:
            model.save_pretrained(folder)
            self.start.tokenizer.save_pretrained(folder)
            for file, array in (arrays or {}).items():
                np.save(folder / file, array)

    def load(self, name: str) -> Any:
        """A model that an earlier stage has saved."""
        torch.manual_seed(self.settings.seed)
        found: Loaded = load_classifier(
            str(self.path / name), self.data.labels, problem=self.settings.task.problem
        )
        return found.model.to(best_device())

    @cached_property
    def model(self) -> Any:
        """The float model, which later stages convert in place."""
        return self.load("float").eval()

    @cached_property
    def table(self) -> ParamTable:
        return ParamTable.load(self.path / CALIBRATED)

    def calibrated(self) -> tuple[Any, ParamTable]:
        """The calibrated model before any training, and its table."""
        if not self.settings.reconstructs:
            return self.model, self.table
        model = hccs.nn.restore(self.load("reconstructed")).eval()
        return model, hccs.nn.current_table(model)

    def delivered(self) -> Any:
        """The converted model as it was saved, on float q, k and v."""
        return hccs.nn.restore(self.load("model"), backend="float").eval()

    # --- examples -----------------------------------------------------------------------------------------

    def calibration_share(self) -> list[dict[str, Any]]:
        """This process's batches of the calibration sentences."""
        return self._share(self.sets["calibration"])

    @cached_property
    def correction_share(self) -> list[dict[str, Any]]:
        """This process's batches of the sentences on which weights are corrected."""
        chosen = random.Random(self.settings.seed).sample(
            range(len(self.sets["train"])),
            min(self.settings.reconstruction_sentences, len(self.sets["train"])),
        )
        return self._share(self.sets["train"].at(chosen))

    def _share(self, sentences: TokenisedSet) -> list[dict[str, Any]]:
        processes = state().num_processes
        batches = list(sentences.batches(min(64, -(-len(sentences) // processes))))
        return batches[state().process_index :: processes]

    @cached_property
    def judge(self) -> Judge:
        """Decides whether a step without labels is kept."""
        return Judge(self.model, self.sets["held_back"])

    # --- scores -------------------------------------------------------------------------------------------

    @cached_property
    def _float_answers(self) -> torch.Tensor:
        return predictions(hccs.nn.detach(self.load("float").eval()), self.sets["dev"])

    def score(self, model: Any) -> Reached:
        return self.reached(predictions(model, self.sets["dev"]))

    def reached(self, answers: torch.Tensor) -> Reached:
        """The dev score of a model's answers, and how they differ from the float model's."""
        labels, base = self.sets["dev"].labels.to(answers.device), self._float_answers.to(answers.device)
        return Reached(
            score=measured(self.metric, answers, labels),
            against_float=difference(self.metric, answers, base, labels),
            answers=self._answers(answers, base, labels),
        )

    def _answers(
        self, logits: torch.Tensor, base: torch.Tensor, labels: torch.Tensor
    ) -> AnswersByLabel | None:
        count, problem = len(self.data.labels), self.settings.task.problem
        if problem in VALUES or not 2 <= count <= MOST_LABELS:
            return None
        after, before = logits.argmax(-1), base.argmax(-1)
        if problem == TOKENS:
            counted = labels != IGNORED
            after, before = (part[:, : labels.shape[1]][counted] for part in (after, before))
            labels = labels[counted]
        confusion = torch.bincount((labels * count + after).cpu(), minlength=count**2).view(count, count)
        changed = [] if problem == TOKENS else (after != before).nonzero()[:, 0].tolist()
        return AnswersByLabel(
            confusion=tuple(map(tuple, confusion.tolist())),
            changed=int((after != before).sum()),
            examples=tuple(
                ChangedAnswer(i, self._text(i), *(int(part[i]) for part in (labels, before, after)))
                for i in changed[:MOST_CHANGED]
            ),
        )

    def _text(self, example: int) -> str:
        """The beginning of a dev text; an image's file."""
        text = " | ".join(part if isinstance(part, str) else "" for part in self.data.dev.texts[example])
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


@contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """The warnings that are given meanwhile; they are shown as ever."""
    noted: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, *where: Any, **options: Any) -> None:
            noted.append(" ".join(str(message).split()))
            show(message, *where, **options)

        warnings.showwarning = note
        yield noted


def finish(folder: str | Path, say: Callable[[str], None] = print) -> None:
    """Write the report and the model's card into a finished run's folder."""
    from hccs.conversion.card import write_card
    from hccs.conversion.certificate import certify_reranker
    from hccs.conversion.report.write import write_report

    if state().is_main_process:
        run = Converted(Path(folder))
        if run.settings.task.problem == RERANK and run.results.reached("integer") is not None:
            certify_reranker(run)
        write_card(run)
        write_report(run.folder)
    state().wait_for_everyone()
