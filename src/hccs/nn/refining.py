"""`refine`: theta and scale fitted to the model's own output by gradient steps; the weights stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hccs._progress import track
from hccs.nn.attaching import attach, current_table, detach
from hccs.nn.batches import device_of, listed, named_inputs, unwrapped
from hccs.nn.layers import LearnableHeadSoftmax
from hccs.nn.preserving import unchanged
from hccs.nn.training import divergence
from hccs.numbers.table import ParamTable

STEP_EXAMPLES = 32

COMPARED = 256
"""Examples on which tables that were met are compared."""


def refine(
    model: nn.Module,
    table: ParamTable,
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    teacher: nn.Module | None = None,
    steps: int = 60,
    learning_rate: float = 0.02,
) -> ParamTable:
    """A table whose model answers more like the float model on `batches`, which need no labels.

    Minimises KL(float model's prediction || HCCS model's), or their squared difference where it is one value,
    over theta and scale from `table` on, keeping the best of the tables met. The float model is `teacher`, or
    the model itself with its own softmax: after `hccs.nn.reconstruct` pass the one of before. The models,
    weights and all, are left as they were.
    """
    model = unwrapped(model)
    given = listed(batches, named=True)
    device = device_of(model)
    whole = [{k: v.to(device) for k, v in named_inputs(model, batch).items()} for batch in given]
    inputs = [part for batch in whole for part in _parts(batch)]
    with unchanged(model):
        targets = _answers(detach(model) if teacher is None else unwrapped(teacher), inputs)
        model.eval().requires_grad_(False)
        attach(model, table, learnable=True)
        return _descend(model, inputs, targets, steps, learning_rate)


def _answers(model: nn.Module, inputs: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    with unchanged(model), torch.no_grad():
        model.eval()
        return [model(**batch).logits.float() for batch in inputs]


def _parts(batch: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """A batch in parts of a size that a step needs: larger ones cost more time than they are worth."""
    rows = len(next(iter(batch.values())))
    for start in range(0, rows, STEP_EXAMPLES):
        yield {name: value[start : start + STEP_EXAMPLES] for name, value in batch.items()}


def _descend(
    model: nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    targets: Sequence[torch.Tensor],
    steps: int,
    learning_rate: float,
) -> ParamTable:
    learnt = [m.log_ratio for m in model.modules() if isinstance(m, LearnableHeadSoftmax)]
    optimiser = torch.optim.Adam(learnt, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    every = -(-len(inputs) * STEP_EXAMPLES // COMPARED)  # batches may be sorted by length: some of each
    compared = inputs[::every], targets[::every]
    best, best_table = _distance(model, *compared), current_table(model)
    check = max(1, steps // 3)
    for step in track(range(steps), total=steps, description="refining theta"):
        batch, target = inputs[step % len(inputs)], targets[step % len(inputs)]
        optimiser.zero_grad()
        _divergence(model, batch, target).backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % check == 0 or step + 1 == steps:
            now = _distance(model, *compared)
            if now < best:
                best, best_table = now, current_table(model)
    provenance = {**best_table.provenance, "refined": {"steps": steps, "kl": best}}
    return replace(best_table, provenance=provenance)


def _divergence(model: nn.Module, batch: Mapping[str, Any], target: torch.Tensor) -> torch.Tensor:
    mask = batch.get("attention_mask")
    return divergence(model(**batch).logits, target, None if mask is None else mask.bool())


def _distance(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], targets: Sequence[torch.Tensor]
) -> float:
    with torch.no_grad():
        return sum(
            float(_divergence(model, batch, target)) for batch, target in zip(inputs, targets, strict=True)
        ) / len(inputs)
