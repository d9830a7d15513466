"""A training in one process: the best weights kept in memory, batches of similar length, few checkpoints.

What `Trainer` does beside the steps themselves, above all whole models written at every evaluation, costs
small models more than the steps. Optimiser, schedule and clipping are `Trainer`'s.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hccs._files.atomic import replacing
from hccs._progress import Bar, duration
from hccs.conversion.data.tokens import TokenisedSet
from hccs.errors import FileError
from hccs.nn.attaching import attach, current_table
from hccs.nn.training import float32_products

if TYPE_CHECKING:
    from hccs.conversion.training import Recipe

SORTED_TOGETHER = 50
"""Batches whose examples are sorted by length together: few enough that every batch is still a random one."""

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SECONDS_BETWEEN_LINES = 30.0

MOST_GRADIENT = 1.0
"""The norm that gradients are clipped to."""


@dataclass
class Best:
    """The best score so far, of the weights and the table that reached it, and all scores on the way."""

    score: float | None = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    table: Any = None
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
        self.table = current_table(model) if hasattr(model.config, "hccs") else None

    def put_back(self, model: Any) -> None:
        """Make the model what it was at its best; its table is attached, frozen."""
        model.load_state_dict(self.weights)
        if self.table is not None:
            attach(model, self.table)


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
    steps = math.ceil(len(data) / recipe.batch_size)
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
        widths = [int(lengths[batch].max()) for batch in batches]
        # One copy for the whole epoch: one for every batch would wait for the device at every step.
        chosen = torch.cat(batches).to(device).split([len(batch) for batch in batches])
        for done, (batch, width) in enumerate(zip(chosen, widths, strict=True), 1):
            if done <= skipped:
                continue
            loss(model, data.batch(batch, width)).backward()
            torch.nn.utils.clip_grad_norm_(parameters, MOST_GRADIENT)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            bar.update(step)
            if step % every == 0 or step == last:
                best.see(model, score())
            clock.tell(step, best)
            if checkpoint is not None and step < last and clock.checkpoint_is_due():
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
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return best


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
