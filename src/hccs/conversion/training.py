"""Fine-tuning and retraining: the best weights on held-back examples are kept, batches have similar lengths.

Optimiser, schedule and clipping are those of transformers' `Trainer`, whose writing of whole models at every
evaluation costs small models more than their steps. Many processes share every batch's gradients.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hccs._files.atomic import replacing
from hccs._progress import Bar, duration
from hccs.conversion.data.problems import IGNORED
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.fingerprints import of_examples
from hccs.conversion.metrics import ACCURACY, Metric
from hccs.conversion.models import predictions, score
from hccs.conversion.runs import state
from hccs.errors import FileError, ParameterError
from hccs.nn.attaching import attach, current_table
from hccs.nn.training import divergence, float32_products
from hccs.numbers.arrays import require_integer

LAST_SEED = 2**32 - 1
"""The largest seed that NumPy's generators take."""

SORTED_TOGETHER = 50
"""Batches whose examples are sorted by length together: few enough that every batch is still a random one."""

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SECONDS_BETWEEN_LINES = 30.0

MOST_GRADIENT = 1.0
"""The norm that gradients are clipped to."""


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
        require_integer("batch_size", self.batch_size, 1, 2**31, "Raise --batch-size.")
        require_integer("seed", self.seed, 0, LAST_SEED, "Choose another --seed.")


RETRAINING = Recipe(epochs=3, learning_rate=5e-5, batch_size=128, distil=0.8, dropout=False)
"""What measurably helps, by default: see lab/docs/reproduction.md."""


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
    checkpoint: Path | None = None,
    *,
    metric: Metric = ACCURACY,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Train `model` in place to its best score on the examples that are held back (`hold_out`).

    With `recipe.distil` the loss follows the predictions that `data` carries (`taught`). With HCCS attached,
    its table stays as it is. Weights that never beat where they started are put back. The state is written to
    `checkpoint` once a minute; the same training resumes from it.
    """
    with nullcontext() if recipe.dropout else without_dropout(model):
        started, table = Best(), current_table(model) if hasattr(model.config, "hccs") else None
        started.see(model, score(model, held, metric))
        if checkpoint is not None:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
        found = train_in_memory(
            model,
            data,
            recipe,
            loss=lambda model, batch: _loss(recipe, model, batch),
            score=lambda: score(model, held, metric),
            checkpoint=checkpoint,
            key="" if checkpoint is None else f"{recipe} {of_examples((data, held))}",
            say=say,
        )
        kept = started
        if found.score is not None and started.score is not None and found.score >= started.score:
            kept = found
        model.load_state_dict(kept.weights)
        if table is not None:
            attach(model, table)
        model.eval()
        assert kept.score is not None
        return Outcome(kept.score, tuple(found.history))


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


def _loss(recipe: Recipe, model: Any, batch: dict[str, Any]) -> Any:
    """Of the labels and, with `distil`, of the float model's predictions that the batch carries."""
    outputs = model(**{name: value for name, value in batch.items() if name != "predictions"})
    wanted = batch.get("predictions")
    if wanted is None or not recipe.distil:
        return outputs.loss
    soft = divergence(outputs.logits, wanted, batch["labels"] != IGNORED, recipe.temperature)
    return (1 - recipe.distil) * outputs.loss + recipe.distil * soft


@dataclass
class Best:
    """The best score so far, the weights that reached it, and all scores on the way."""

    score: float | None = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)
    since: int = 0
    """Evaluations since the best."""

    def see(self, model: Any, score: float) -> None:
        """Count an evaluation, and keep what the model is if it is the best."""
        self.history.append(score)
        if self.score is not None and score <= self.score:
            self.since += 1
            return
        self.score, self.since = score, 0
        self.weights = copy.deepcopy(model.state_dict())


def batches_of_similar_length(
    lengths: torch.Tensor, size: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """The indices of all examples once, in batches: of random examples, but sorted a few batches at a time.

    A batch is as wide as its longest text, so that one of random lengths is mostly padding. The batches come
    in random order.

    >>> lengths = torch.tensor([9, 1, 9, 1, 9, 1])
    >>> batches = batches_of_similar_length(lengths, 3, torch.Generator().manual_seed(0))
    >>> sorted(lengths[batch].tolist() for batch in batches)
    [[1, 1, 1], [9, 9, 9]]
    """
    order = torch.randperm(len(lengths), generator=generator)
    found: list[torch.Tensor] = []
    for part in order.split(SORTED_TOGETHER * size):
        found += part[lengths[part].argsort(stable=True)].split(size)
    for i in torch.randperm(len(found), generator=generator).tolist():
        yield found[i]


@float32_products(quick=True)
def train_in_memory(
    model: Any,
    data: TokenisedSet,
    recipe: Recipe,
    *,
    loss: Callable[[Any, dict[str, Any]], torch.Tensor],
    score: Callable[[], float],
    checkpoint: Path | None = None,
    key: str = "",
    say: Callable[[str], None] | None = None,
) -> Best:
    """Train a model in place by a loss of (model, batch); what is returned remembers its best weights.

    `score` is asked as often as the recipe says and at the end. On a GPU float32 products are TF32's
    meanwhile. The state is written to `checkpoint` once a minute; a training with the same `key` that finds
    it there resumes from it, to the same weights. `say` hears how long it will take.
    """
    processes, is_main = state().num_processes, state().is_main_process
    steps = max(1, math.ceil(len(data) / recipe.batch_size) // processes)
    every, last = max(1, steps // recipe.evaluations_per_epoch), math.ceil(recipe.epochs * steps)
    optimiser, schedule = _optimiser(model, recipe, int(recipe.warmup * recipe.epochs * steps), last)
    torch.manual_seed(recipe.seed)
    order = torch.Generator().manual_seed(recipe.seed)
    lengths, device = torch.tensor(data.lengths), data.labels.device
    best, step, bar = Best(), 0, Bar("training", last)
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.train()
    clock = _Clock(last, say)
    skipped = 0
    if checkpoint is not None and (saved := _read_checkpoint(checkpoint, key)) is not None:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        schedule.load_state_dict(saved["schedule"])
        best, step, skipped = Best(**saved["best"]), saved["step"], saved["batches"]
        order.set_state(saved["order"])
        _set_random_states(saved["random"])
        clock.resumed(step)
    while step < last:
        epoch_order = order.get_state()
        batches = list(batches_of_similar_length(lengths, recipe.batch_size, order))
        if len(batches) >= processes:  # as many for each; those that are left over differ by epoch
            batches = batches[: steps * processes][state().process_index :: processes]
        widths = [int(lengths[batch].max()) for batch in batches]
        # One copy for the whole epoch: one for every batch would wait for the device at every step.
        chosen = torch.cat(batches).to(device).split([len(batch) for batch in batches])
        for done, (batch, width) in enumerate(zip(chosen, widths, strict=True), 1):
            if done <= skipped:
                continue
            loss(model, data.batch(batch, width)).backward()
            if processes > 1:
                _average_gradients(parameters, processes)
            torch.nn.utils.clip_grad_norm_(parameters, MOST_GRADIENT)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            if is_main:
                bar.update(step)
            if step % every == 0 or step == last:
                best.see(model, score())
            clock.tell(step, best)
            if checkpoint is not None and is_main and step < last and clock.checkpoint_is_due():
                states = {"model": model, "optimiser": optimiser, "schedule": schedule}
                saved = {name: part.state_dict() for name, part in states.items()}
                saved |= {"best": vars(best), "step": step, "batches": done, "order": epoch_order}
                with replacing(checkpoint) as file:
                    torch.save({**saved, "random": _random_states(), "key": key}, file)
            if step == last or best.since >= recipe.patience:
                step = last
                break
        skipped = 0
    bar.close()
    if checkpoint is not None and is_main:
        checkpoint.unlink(missing_ok=True)
    return best


def _average_gradients(parameters: Sequence[Any], processes: int) -> None:
    """The mean of all processes' gradients, which see different batches."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(together)
    for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient) / processes)


class _Clock:
    """When a training tells how far it is, and when it writes a checkpoint."""

    def __init__(self, steps: int, say: Callable[[str], None] | None) -> None:
        self.steps, self.say, self.first = steps, say, 0
        self.began = self.told = self.written = time.monotonic()

    def resumed(self, step: int) -> None:
        self.first = step
        if self.say is not None:
            self.say(f"  goes on from step {step:,} of {self.steps:,}")

    def tell(self, step: int, best: Best) -> None:
        now = time.monotonic()
        if self.say is not None and now - self.told > SECONDS_BETWEEN_LINES and step < self.steps:
            self.told = now
            left = (now - self.began) / (step - self.first) * (self.steps - step)
            reached = "" if best.score is None else f", best held-back score {best.score:.4f}"
            self.say(f"  step {step:,} of {self.steps:,}{reached}; about {duration(left)} left")

    def checkpoint_is_due(self) -> bool:
        if time.monotonic() - self.written < SECONDS_BETWEEN_CHECKPOINTS:
            return False
        self.written = time.monotonic()
        return True


def _read_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """The state of a training of the same recipe and examples; None where there is none."""
    if not path.exists():
        return None
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch makes of a damaged file
        raise FileError(
            f"{path} to be a checkpoint", str(error).splitlines()[0], "Delete it to train from the start."
        ) from error
    return saved if saved.get("key") == key else None


def _random_states() -> list[torch.Tensor]:
    """The states of the generators that dropout draws from: the CPU's, then those of all devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _set_random_states(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states[1:])


def _optimiser(model: Any, recipe: Recipe, warmup: int, last: int) -> tuple[Any, Any]:
    """AdamW, without decay of biases and LayerNorms, and a rate that rises and then falls to 0 linearly."""
    decayed: list[Any] = []
    plain: list[Any] = []
    for module in model.modules():
        norm = isinstance(module, torch.nn.LayerNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                (plain if norm or "bias" in name else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).device.type == "cuda"
    optimiser = torch.optim.AdamW([g for g in groups if g["params"]], recipe.learning_rate, fused=fused)

    def rate(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (last - step) / max(1, last - warmup))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
