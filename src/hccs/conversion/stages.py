"""The stages of a conversion: each takes the run, reads what earlier stages saved, and returns its result."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import hccs.nn
from hccs._files import atomic
from hccs.calibration import HeadStatistics, fidelity, search
from hccs.conversion.data.problems import CLASSIFICATION, IGNORED, IMAGES, RERANK, TOKENS
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.evaluate import agreement, integer_logits, share_equal
from hccs.conversion.metrics import ACCURACY
from hccs.conversion.models import best_device, float_accuracy, predictions
from hccs.conversion.results import (
    AllInteger,
    Calibrated,
    Collected,
    CorrectedMatrix,
    FloatModel,
    HeadFit,
    IntegerAttention,
    Reconstructed,
    Saved,
    Scored,
    Trained,
    Untrained,
    Verdict,
)
from hccs.conversion.runs.processes import state
from hccs.conversion.scores import closer, measured
from hccs.conversion.steps import SCALES, evaluate_modes, plan_whole, retrain, train_whole
from hccs.conversion.training import Outcome, Recipe, train
from hccs.errors import HccsError
from hccs.nn import IntegerPlan
from hccs.nn.integer import NORMALISATION
from hccs.nn.training import divergence
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN
from hccs.program.program import CLASSIFY, TAG, TextSettings

if TYPE_CHECKING:
    from hccs.conversion.run import Run

CALIBRATED = "table.hccs.safetensors"
STATISTICS = "statistics.safetensors"

ANSWERS = "answers.npy"
"""The logits of the training model on the dev set, beside the weights it was saved with."""

MOST_JUDGES = 1024
"""Held-back sentences on which a step is judged."""

LEAST_SENTENCES = 8
"""Reconstruction holds back one sentence in so many."""


class Judge:
    """Held-back sentences and the float model's answers to them: which of two models is nearer to those."""

    def __init__(self, teacher: Any, held_back: TokenisedSet) -> None:
        every = -(-len(held_back) // MOST_JUDGES)
        self.sentences = held_back.at(range(0, len(held_back), every))
        self.wanted = predictions(teacher, self.sentences)
        labels = self.sentences.labels
        self.counted = labels != IGNORED if labels.ndim == 2 else None

    def answers(self, model: Any) -> torch.Tensor:
        return predictions(model, self.sentences)

    def verdict(self, before: torch.Tensor, after: torch.Tensor) -> Verdict:
        """Whether a model's answers after a step are kept, given those before it."""
        nearer = closer(after, before, self.wanted, self.counted)
        first, second = (float(divergence(part, self.wanted, self.counted)) for part in (before, after))
        return Verdict(not nearer.loses, (first, second), (nearer.value, nearer.error), len(self.sentences))


def correct_weights(model: Any, teacher: Any, batches: Sequence[dict[str, Any]], judge: Judge) -> Verdict:
    """Correct weights in place by closed-form ridge regression; a step that loses is undone.

    Fewer than LEAST_SENTENCES sentences leave none to hold back: then nothing is corrected.
    """
    before, weights = judge.answers(model), copy.deepcopy(model.state_dict())
    if sum(len(next(iter(batch.values()))) for batch in batches) < LEAST_SENTENCES:
        return judge.verdict(before, before)
    matrices = hccs.nn.reconstruct(model, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(model))
    if not verdict.kept:
        model.load_state_dict(weights)
    return replace(verdict, matrices=tuple(CorrectedMatrix(**asdict(matrix)) for matrix in matrices))


def refine(
    model: Any, teacher: Any, table: ParamTable, batches: Sequence[dict[str, Any]], judge: Judge
) -> Verdict:
    """Fit theta to the float model's answers, and attach it; where that loses, the table stays attached.

    Without a teacher the float model is the model itself with its own softmax.
    """
    before = judge.answers(hccs.nn.attach(model, table))
    found = hccs.nn.refine(model, table, batches, teacher=teacher)
    verdict = judge.verdict(before, judge.answers(hccs.nn.attach(model, found)))
    if not verdict.kept:
        hccs.nn.attach(model, table)
    return verdict


def score_float_model(run: Run) -> FloatModel:
    """Score the float model, fine-tuning it first if it came without a head for the problem."""
    model = hccs.nn.detach(run.start.model.to(best_device()))  # it may have been converted before
    if not run.start.has_head:
        why = "its head is replaced" if run.settings.new_head else "the model has no such head"
        run.say(f"  {why}: fine-tuning it on the task")
        recipe = replace(run.settings.fine_tuning, seed=run.settings.seed)
        where = run.path / "checkpoints" / "float.pt"
        train(model, run.sets["train"], run.sets["held_back"], recipe, where, metric=run.metric, say=run.say)
    run.keep(model, "float")
    if run.start.has_head and run.metric == ACCURACY and run.settings.task.problem == CLASSIFICATION:
        float_accuracy(model, run.sets["dev"], run.data.labels)  # warns of labels in another order
    return FloatModel(
        metric=run.metric.name,
        score=measured(run.metric, predictions(model, run.sets["dev"]), run.sets["dev"].labels),
        examples=len(run.sets["dev"]),
        cut={part: run.sets[part].cut for part in ("train", "dev")},
        fine_tuned=not run.start.has_head,
        labels=tuple(run.data.labels),
        fingerprints=run.fingerprints,
    )


def collect(run: Run) -> Collected:
    """Statistics of the float model's logits over the calibration sentences."""
    stats = hccs.nn.collect(run.model, run.calibration_share(), n=run.n, scale=run.fitting.scale)
    if state().is_main_process:
        stats.save(run.path / STATISTICS)
    return Collected(
        sentences=len(run.sets["calibration"]),
        rows=int(stats.rows.sum()),
        scale=run.fitting.record["scale"],
    )


def calibrate(run: Run) -> Calibrated:
    """The table of every head; theta is refined here unless weights are corrected first."""
    stats = HeadStatistics.load(run.path / STATISTICS)
    settings, form = run.settings, run.settings.form
    run.say(f"  {form}{form.reason(settings.retraining is not None)}")
    objective = run.fitting.objective
    found = search(stats, run.n, settings.granularity, settings.mode, objective=objective, **asdict(form))
    table, verdict = found.table, None
    if settings.refines and not settings.reconstructs:
        batches = list(run.sets["calibration"].batches(64))
        verdict = refine(run.model, None, table, batches, run.judge)
        table = hccs.nn.current_table(run.model)
        hccs.nn.detach(run.model)
    if state().is_main_process:
        table.save(run.path / CALIBRATED)
    heads = tuple(HeadFit(h.layer, h.head, h.kl, h.kl_renormalised, h.entropy) for h in found.heads)
    return Calibrated(kl=found.kl, **asdict(form), objective=objective, refined=verdict, heads=heads)


def reconstruct(run: Run) -> Reconstructed:
    """The float weights corrected for HCCS, then theta refined; later stages use the result."""
    model = hccs.nn.attach(run.load("float").eval(), run.table)
    correction, refused, refined = None, None, None
    try:
        correction = correct_weights(model, run.model, run.correction_share, run.judge)
    except HccsError as error:
        run.say(f"  weights stay as they are: {error}")
        refused = str(error)
    if run.settings.refines:
        batches = list(run.sets["calibration"].batches(64))
        refined = refine(model, run.model, run.table, batches, run.judge)
    run.keep(model, "reconstructed")
    return Reconstructed(correction=correction, refused=refused, refined=refined)


def score_calibrated(run: Run) -> Scored:
    """The calibrated model's score, in every mode."""
    model, table = run.calibrated()
    modes = evaluate_modes(model, table, run.sets["dev"], metric=run.metric)
    reached = run.score(model)
    hccs.nn.detach(model)
    return Scored(reached=reached, modes=modes)


def score_untrained(run: Run) -> Untrained:
    """The float weights all in integers: the score of the model that is trained, before its training."""
    try:
        plan = plan_whole(run.model, run.table, run.sets["calibration"])
        plan.require_trainable()
        plan.lower()
    except HccsError as error:
        hccs.nn.detach(run.model)
        run.say(f"  not all in integers: {error}")
        return Untrained(refused=str(error))
    with plan.training():
        return Untrained(reached=run.score(run.model))


def _trains_in_integers(run: Run) -> bool:
    before: Untrained | None = run.found.get("untrained")
    return before is not None and before.refused is None


def retrain_model(run: Run) -> Trained:
    """Train the model with HCCS in it; score it in every mode."""
    assert run.settings.retraining is not None
    recipe = replace(run.settings.retraining, seed=run.settings.seed)
    if run.settings.task.unlabelled:
        recipe = replace(recipe, distil=1.0)
    where = run.path / "checkpoints" / "retrain.pt"
    if _trains_in_integers(run):
        outcome, answers = _train_in_integers(run, recipe, where)
    else:
        outcome = retrain(
            run.model,
            run.table,
            run.sets["train"],
            run.sets["held_back"],
            recipe,
            where,
            metric=run.metric,
            say=run.say,
        )
        run.keep(run.model, "retrained")
        answers = predictions(run.model, run.sets["dev"])
    table = hccs.nn.current_table(run.model)
    modes = evaluate_modes(run.model, table, run.sets["dev"], metric=run.metric)
    return Trained(
        reached=run.reached(answers), modes=modes, held_back=outcome.score, history=outcome.history
    )


def _train_in_integers(run: Run, recipe: Recipe, where: Path) -> tuple[Outcome, torch.Tensor]:
    """Train as the program computes, and write the program with the scales of the training."""
    plan = plan_whole(run.model, run.table, run.sets["calibration"])
    examples, held_back = run.sets["train"], run.sets["held_back"]
    outcome = train_whole(plan, examples, held_back, recipe, where, metric=run.metric, say=run.say)
    with plan.training():
        answers = predictions(run.model, run.sets["dev"])
    run.keep(hccs.nn.attach(run.model, run.table), "retrained", {ANSWERS: answers.cpu().numpy()})
    _write(plan.lower(), run)
    return outcome, answers


def _write(model: IntegerModel, run: Run) -> None:
    """Save the integer model with the tokenizer and the settings by which it reads texts."""
    if state().is_main_process:
        problem, text = run.settings.task.problem, _tokenizer_text(run.start.tokenizer)
        if text and problem != IMAGES:
            kind = {TOKENS: TAG, RERANK: RERANK}.get(problem, CLASSIFY)
            n = min(run.n, model.program.longest)
            facts = {**model.program.facts, "text": TextSettings(kind, n).as_json()}
            model = IntegerModel(replace(model.program, tokenizer=text, facts=facts))
        model.save(run.path / IN_RUN)
    state().wait_for_everyone()


def _tokenizer_text(tokenizer: Any) -> str:
    """The text of a tokenizer.json; "" where the tokenizer is written in Python, or reads images."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        return ""
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    return str(plain.to_str())


def quantise_attention(run: Run) -> IntegerAttention:
    """Scales of the delivered model's q, k and v, saved with it; its score with attention in integers."""
    if run.settings.retraining is None:
        model = hccs.nn.attach(*run.calibrated()).eval()
    else:
        model = hccs.nn.restore(run.load("retrained"))
    table = hccs.nn.calibrate_operands(model, hccs.nn.current_table(model), run.calibration_share())
    run.keep(hccs.nn.attach(model, table), "model")
    if table.mode not in NORMALISATION:
        return IntegerAttention()
    hccs.nn.attach(model, table, backend="integer")
    return IntegerAttention(reached=run.score(model))


def lower(run: Run) -> AllInteger:
    """The delivered model all in integers, where it has such a form; the score is that of the file."""
    before: Untrained | None = run.found.get("untrained")
    if before is not None and before.refused is not None:
        return AllInteger(refused=before.refused)
    correction = None
    if before is None:
        try:
            correction = _lower_untrained(run)
        except HccsError as error:
            run.say(f"  not all in integers: {error}")
            return AllInteger(refused=str(error))
    file, dev, model = run.path / IN_RUN, run.sets["dev"], run.delivered()
    logits = integer_logits(IntegerModel.load(file), dev)
    equal = None
    if before is not None:
        trained = torch.from_numpy(np.load(run.path / "retrained" / ANSWERS))
        equal = share_equal(logits, trained, dev.labels)
    return AllInteger(
        reached=run.reached(logits),
        agreement=agreement(logits, predictions(model, dev), dev.labels),
        equal=equal,
        bytes=file.stat().st_size,
        float32_bytes=4 * sum(parameter.numel() for parameter in model.parameters()),
        correction=correction,
    )


def _lower_untrained(run: Run) -> Verdict | None:
    """Write the delivered model all in integers, its weights corrected once more for their rounding.

    Scales of values come first and stay; those of weights are the corrected weights' own.
    """
    model = run.delivered()
    batches = list(run.sets["calibration"].batches(64))
    table, pixels = hccs.nn.current_table(model), run.sets["calibration"].pixels
    plan = IntegerPlan.measured(model, table, batches, SCALES, pixels=pixels)
    plan.lower()  # refuses before any weight is corrected
    verdict = None
    if run.settings.reconstructs:
        try:
            plan.require_trainable()
        except HccsError as error:
            run.say(f"  weights stay as they are: {error}")
        else:
            with plan.training():
                verdict = correct_weights(model, run.model, run.correction_share, run.judge)
    _write(plan.lower(), run)
    return verdict


def save(run: Run) -> Saved:
    """The delivered model's table as a file beside it, and its KL; intermediate models are deleted."""
    model = run.delivered()
    table = hccs.nn.current_table(model)
    stats = hccs.nn.collect(model, run.calibration_share(), n=run.n, scale=table.scale)
    found = fidelity(stats, table)
    if state().is_main_process:
        table.save(run.path / CONVERTED)
        atomic.replace(run.path / "model.hccs.json", table.to_json().encode())
        for needless in ("checkpoints", "retrained", "reconstructed"):
            shutil.rmtree(run.path / needless, ignore_errors=True)
    heads = tuple(
        HeadFit(
            layer,
            head,
            kl=float(found[layer, head, 0]),
            kl_renormalised=float(found[layer, head, 1]),
            entropy=-stats.summary([layer * table.shape[1] + head]).negative_entropy,
        )
        for layer, head in np.ndindex(table.shape)
    )
    return Saved(mode=table.mode.value, kl=float(found[..., 0].mean()), heads=heads)


def stages_for(settings: Any) -> dict[str, Any]:
    in_integers, trains = settings.integer == "whole", settings.retraining is not None
    return {
        "float_model": score_float_model,
        "collect": collect,
        "calibrate": calibrate,
        **({"reconstruct": reconstruct} if settings.reconstructs else {}),
        "calibrated": score_calibrated,
        **({"untrained": score_untrained} if in_integers and trains else {}),
        **({"retrain": retrain_model} if trains else {}),
        "attention": quantise_attention,
        **({"integer": lower} if in_integers else {}),
        "save": save,
    }
