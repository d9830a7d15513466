"""`refine`: theta and scale fitted to the model's own output by gradient steps; the weights stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hccs._progress import track
from hccs.nn.attaching import attach, current_table, detach
from hccs.nn.batches import listed, named_inputs
from hccs.nn.distilling import divergence
from hccs.nn.layers import LearnableHeadSoftmax
from hccs.nn.preserving import unchanged
from hccs.numbers.table import ParamTable


def refine(
    model: nn.Module,
    table: ParamTable,
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    steps: int = 120,
    learning_rate: float = 0.02,
) -> ParamTable:
    """A table whose model answers more like the float model on `batches`, which need no labels.

    Minimises KL(float model's prediction || HCCS model's), or their squared difference where it is one value,
    over theta and scale from `table` on, keeping the best of the tables met. The model, weights and all, is
    left as it was.
    """
    given = listed(batches)
    device = next(model.parameters()).device
    inputs = [{k: v.to(device) for k, v in named_inputs(model, batch).items()} for batch in given]
    with unchanged(model):
        detach(model).eval()
        with torch.no_grad():
            targets = [model(**batch).logits.float() for batch in inputs]
        model.requires_grad_(False)
        attach(model, table, learnable=True)
        return _descend(model, inputs, targets, steps, learning_rate)


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
    best, best_table = _distance(model, inputs, targets), current_table(model)
    check = max(len(inputs), steps // 8)
    for step in track(range(steps), total=steps, description="refining theta"):
        batch, target = inputs[step % len(inputs)], targets[step % len(inputs)]
        optimiser.zero_grad()
        _divergence(model, batch, target).backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % check == 0 or step + 1 == steps:
            now = _distance(model, inputs, targets)
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
