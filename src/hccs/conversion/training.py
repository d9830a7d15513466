"""Fine-tuning and retraining on transformers' `Trainer`; held-back examples choose the best checkpoint."""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from hccs._progress import Bar, duration
from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tokens import TokenisedSet, as_batch
from hccs.conversion.fingerprints import of_examples
from hccs.conversion.loop import train_in_memory
from hccs.conversion.metrics import ACCURACY, Metric
from hccs.conversion.models import predictions, score, transformers
from hccs.conversion.runs.processes import state
from hccs.conversion.runs.record import write_json
from hccs.errors import ParameterError
from hccs.nn.attaching import attach, current_table
from hccs.nn.training import divergence
from hccs.numbers.table import ParamTable

LAST_SEED = 2**32 - 1
"""The largest seed that NumPy's generators take."""

MEASURED = 3
"""Steps that the time of a training is estimated from."""

WORTH_TELLING = 20.0
"""Seconds that a training must take to be worth a word."""


@dataclass(frozen=True)
class Recipe:
    """How to train.

    `distil` is the weight of the float model's predictions in the loss. Without `dropout` the model that is
    trained is the one that is used.
    """

    epochs: float = 2.0
    learning_rate: float = 5e-5
    batch_size: int = 64
    evaluations_per_epoch: int = 2
    patience: int = 4
    weight_decay: float = 0.01
    warmup: float = 0.1
    distil: float = 0.0
    temperature: float = 2.0
    dropout: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, option in (("epochs", "--epochs"), ("learning_rate", "--learning-rate")):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ParameterError(f"{name} above 0", str(value), f"Choose another {option}.")
        if self.batch_size < 1:
            raise ParameterError("batch_size of at least 1", str(self.batch_size), "Raise --batch-size.")
        if not 0 <= self.seed <= LAST_SEED:
            raise ParameterError(f"a seed of 0 to {LAST_SEED}", str(self.seed), "Choose another --seed.")


@dataclass(frozen=True)
class Outcome:
    """The score of the weights that were kept on the held-back examples, and of every evaluation on the way.

    It chose, so it flatters; what is reported is measured on other examples.
    """

    score: float
    history: tuple[float, ...]


def taught(data: TokenisedSet, teacher: Any) -> TokenisedSet:
    """The examples with the float model's predictions, asked once for all epochs."""
    return data.with_predictions(predictions(teacher, data, progress="the float model's predictions"))


def train(
    model: Any,
    data: TokenisedSet,
    held: TokenisedSet,
    recipe: Recipe,
    folder: Path,
    *,
    resumable: bool = True,
    metric: Metric = ACCURACY,
    say: Callable[[str], None] | None = None,
    checkpoint: Path | None = None,
) -> Outcome:
    """Train `model` in place to its best score on the examples that are held back (`hold_out`).

    An interrupted training resumes from `folder`. With `recipe.distil` the loss follows the predictions that
    `data` carries (`taught`). With HCCS attached, its table stays as it is. Weights that never beat where
    they started are put back. A training that is not `resumable` keeps its best weights in memory, in one
    process, and writes nothing but, once a minute, its state to `checkpoint`, where one is given and from
    which the same training resumes.
    """
    with nullcontext() if recipe.dropout else without_dropout(model):
        return _train(model, data, held, recipe, folder, resumable, metric, say, checkpoint)


def _train(
    model: Any,
    data: TokenisedSet,
    held: TokenisedSet,
    recipe: Recipe,
    folder: Path,
    resumable: bool,
    metric: Metric,
    say: Callable[[str], None] | None,
    checkpoint: Path | None,
) -> Outcome:
    start = score(model, held, metric)
    before = copy.deepcopy(model.state_dict())
    table_before = current_table(model) if hasattr(model.config, "hccs") else None
    if not resumable:
        found = train_in_memory(
            model,
            data,
            recipe,
            loss=partial(_loss, recipe),
            score=lambda: score(model, held, metric),
            checkpoint=checkpoint,
            key="" if checkpoint is None else f"{recipe} {of_examples((data, held))}",
            say=say,
        )
        if found.score is not None and found.score >= start:
            found.put_back(model)
        else:
            _put_back(model, before, table_before)
        model.eval()
        return Outcome(max(start, found.score or start), tuple(found.history))
    hf = transformers()
    arguments = _arguments(hf, recipe, len(data), folder, next(model.parameters()).device.type)
    trainer = _trainer_class(hf)(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=held,
        data_collator=as_batch,
        callbacks=[
            hf.EarlyStoppingCallback(early_stopping_patience=recipe.patience),
            _progress_callback(hf, say),
        ],
    )
    trainer.recipe, trainer.metric = recipe, metric
    trainer.remove_callback(hf.trainer_callback.PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    history = tuple(e["eval_score"] for e in trainer.state.log_history if "eval_score" in e)
    best = trainer.state.best_metric
    if best is None or best < start:
        _put_back(model, before, table_before)
        best = start
    elif table_before is not None:
        attach(model, table_before)
    model.eval()
    trainer.accelerator.wait_for_everyone()  # the best checkpoint has been read by all
    if trainer.is_world_process_zero():
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(float(best), history)


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """A model whose dropout drops nothing, in training too."""
    before = [
        (module, name, value)
        for module in model.modules()
        for name in ("p", "dropout_prob", "attention_dropout")
        if isinstance(value := getattr(module, name, None), float)
        and (name != "p" or isinstance(module, nn.Dropout))
    ]
    for module, name, _ in before:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _put_back(model: Any, weights: dict[str, Any], table: ParamTable | None) -> None:
    model.load_state_dict(weights)
    if table is not None:
        attach(model, table)


def _loss(recipe: Recipe, model: Any, batch: dict[str, Any]) -> Any:
    """Of the labels and, with `distil`, of the float model's predictions that the batch carries."""
    return _mixed(recipe, model(**{k: v for k, v in batch.items() if k != "predictions"}), batch)


def _mixed(recipe: Recipe, outputs: Any, batch: dict[str, Any]) -> Any:
    wanted = batch.get("predictions")
    if wanted is None or not recipe.distil:
        return outputs.loss
    soft = divergence(outputs.logits, wanted, batch["labels"] != IGNORED, recipe.temperature)
    return (1 - recipe.distil) * outputs.loss + recipe.distil * soft


def _last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that is whole, with the best one beside it, wherever the folder lies by now."""
    found = folder.glob("checkpoint-*/trainer_state.json")
    for path in sorted(found, key=lambda p: int(p.parent.name.split("-")[1]), reverse=True):
        with state().main_process_first():
            try:
                saved = json.loads(path.read_bytes())
            except ValueError:  # cut off where the disk was full
                continue
            if saved.get("best_model_checkpoint") is None:
                return str(path.parent)
            # Trainer would leave out a best one that it does not find, and keep its score.
            best = folder / Path(saved["best_model_checkpoint"]).name
            if not best.is_dir():
                continue
            if saved["best_model_checkpoint"] != str(best) and state().is_main_process:
                write_json(path, {**saved, "best_model_checkpoint": str(best)})
        return str(path.parent)
    return None


def _arguments(hf: Any, recipe: Recipe, examples: int, folder: Path, device: str) -> Any:
    steps = math.ceil(examples / recipe.batch_size)
    every = max(1, steps // recipe.evaluations_per_epoch)
    return hf.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        warmup_steps=int(recipe.warmup * recipe.epochs * steps),
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=1,
        # A resumed training remembers how many evaluations in a row have not bettered the model.
        restore_callback_states_from_checkpoint=True,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy="no",
        logging_nan_inf_filter=False,  # it waits for the device at every step
        report_to=[],
        disable_tqdm=True,
        seed=recipe.seed,
        use_cpu=device == "cpu",
        tf32=True if device == "cuda" else None,
        optim="adamw_torch_fused" if device == "cuda" else "adamw_torch",
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
    )


def _trainer_class(hf: Any) -> Any:
    class DistillingTrainer(hf.Trainer):  # type: ignore[misc, name-defined]
        """A `Trainer` whose loss may follow the float model, and that evaluates by our metric."""

        recipe: Recipe
        metric: Metric
        control: Any

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            wanted = inputs.pop("predictions", None)
            outputs = model(**inputs)
            loss = _mixed(self.recipe, outputs, {**inputs, "predictions": wanted})
            return (loss, outputs) if return_outputs else loss

        def evaluate(
            self, *arguments: Any, metric_key_prefix: str = "eval", **options: Any
        ) -> dict[str, float]:
            metrics = {f"{metric_key_prefix}_score": score(self.model, self.eval_dataset, self.metric)}
            self.log(dict(metrics))
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    return DistillingTrainer


def _progress_callback(hf: Any, say: Callable[[str], None] | None) -> Any:
    class Progress(hf.TrainerCallback):  # type: ignore[misc, name-defined]
        """Our bar in place of transformers' own, and a word on how long it will take."""

        bar: Bar | None = None
        steps: list[float]

        def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            self.bar = Bar("training", state.max_steps) if state.is_world_process_zero else None
            self.steps = []

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if self.bar is not None:
                self.bar.update(state.global_step)
            if say is not None and state.is_world_process_zero and len(self.steps) <= MEASURED:
                self.steps.append(time.perf_counter())
                if len(self.steps) > MEASURED:
                    # The first step, which warms up, is not among them.
                    each = (self.steps[-1] - self.steps[0]) / MEASURED
                    line = estimate(each, state.max_steps - state.global_step)
                    if line:
                        say(line)

        def on_train_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if self.bar is not None:
                self.bar.close()

    return Progress()


def estimate(each: float, steps: int) -> str:
    """How long so many steps will take, in words; nothing for what is over soon.

    >>> estimate(0.5, 1200)
    '  about 10 min 0 s for 1,200 steps of 0.50 s, evaluations apart'
    """
    if each * steps < WORTH_TELLING:
        return ""
    return f"  about {duration(each * steps)} for {steps:,} steps of {each:.2f} s, evaluations apart"
