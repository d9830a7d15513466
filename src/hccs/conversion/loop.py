"""A training that nobody resumes: one process, the best weights kept in memory, batches of similar length.

What `Trainer` does beside the steps themselves, above all whole models written at every evaluation, costs
small models more than the steps. Optimiser, schedule and clipping are `Trainer`'s.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hccs._progress import Bar
from hccs.conversion.data.tokens import TokenisedSet
from hccs.nn.attaching import attach, current_table
from hccs.nn.training import float32_products

if TYPE_CHECKING:
    from hccs.conversion.training import Recipe

SORTED_TOGETHER = 50
"""Batches whose examples are sorted by length together: few enough that every batch is still a random one."""

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
    after_epoch: Callable[[], None] | None,
) -> Best:
    """Train a model in place by a loss of (model, batch); what is returned remembers its best weights.

    `score` is asked as often as the recipe says and at the end. `after_epoch` is called after every epoch but
    the last. On a GPU float32 products are TF32's meanwhile.
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
    while step < last:
        batches = list(batches_of_similar_length(lengths, recipe.batch_size, order))
        widths = [int(lengths[batch].max()) for batch in batches]
        # One copy for the whole epoch: one for every batch would wait for the device at every step.
        chosen = torch.cat(batches).to(device).split([len(batch) for batch in batches])
        for batch, width in zip(chosen, widths, strict=True):
            loss(model, data.batch(batch, width)).backward()
            torch.nn.utils.clip_grad_norm_(parameters, MOST_GRADIENT)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            bar.update(step)
            if step % every == 0 or step == last:
                best.see(model, score())
            if step == last or best.since >= recipe.patience:
                step = last
                break
        if step < last and after_epoch is not None:
            after_epoch()
            model.train()
    bar.close()
    return best


def _optimiser(model: Any, recipe: Recipe, warmup: int, last: int) -> tuple[Any, Any]:
    """AdamW, without decay of biases and LayerNorms, and a rate that rises and then falls to 0 linearly."""
    decayed: list[Any] = []
    plain: list[Any] = []
    learnt: list[Any] = []
    for module in model.modules():
        norm = isinstance(module, torch.nn.LayerNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                kept = plain if norm or "bias" in name else decayed
                (learnt if name == "log_ratio" else kept).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
        {"params": learnt, "weight_decay": 0.0, "lr": recipe.theta_learning_rate},
    ]
    fused = next(model.parameters()).device.type == "cuda"
    optimiser = torch.optim.AdamW([g for g in groups if g["params"]], recipe.learning_rate, fused=fused)

    def rate(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (last - step) / max(1, last - warmup))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
