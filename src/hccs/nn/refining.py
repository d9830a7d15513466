"""`refine`: theta and scale fitted to the model's own output by gradient steps; the weights stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from hccs._progress import track
from hccs.nn.attaching import attach, current_table, detach
from hccs.nn.batches import held_back_rows, listed, named_inputs
from hccs.nn.distilling import divergence
from hccs.nn.layers import LearnableHeadSoftmax
from hccs.nn.preserving import unchanged
from hccs.numbers.table import ParamTable

STEP_EXAMPLES = 32

COMPARED = 256
"""Held-back examples, at most, on which tables that were met are compared."""


Inputs = Mapping[str, torch.Tensor]

Answered = tuple[Inputs, torch.Tensor]
"""A batch, and what the float model answers."""


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
    over theta and scale from `table` on. One sentence in eight is held back from the steps, and chooses among
    the tables met; of fewer than eight all choose. The float model is `teacher`, or the model itself with its
    own softmax: after `hccs.nn.reconstruct` pass the one of before. The models, weights and all, are left as
    they were.
    """
    given = listed(batches)
    device = next(model.parameters()).device
    whole = [{k: v.to(device) for k, v in named_inputs(model, batch).items()} for batch in given]
    fitted, held_back = _apart(whole)
    with unchanged(model):
        float_model = detach(model) if teacher is None else teacher
        taught, judged = (_answered(float_model, part) for part in (fitted, held_back))
        model.eval().requires_grad_(False)
        attach(model, table, learnable=True)
        return _descend(model, taught, judged or taught, steps, learning_rate)


def _apart(batches: Sequence[Inputs]) -> tuple[list[Inputs], list[Inputs]]:
    """Batches to step on, and those of the sentences that are held back from them."""
    found: tuple[list[Inputs], list[Inputs]] = ([], [])
    sentences = 0
    for batch in batches:
        rows = len(next(iter(batch.values())))
        chooses = held_back_rows(sentences, rows)
        for to, chosen in zip(found, (~chooses, chooses), strict=True):
            to.extend(_parts({name: value[chosen.to(value.device)] for name, value in batch.items()}))
        sentences += rows
    return found


def _answered(model: nn.Module, batches: Sequence[Inputs]) -> list[Answered]:
    with unchanged(model), torch.no_grad():
        model.eval()
        return [(batch, model(**batch).logits.float()) for batch in batches]


def _parts(batch: Inputs) -> Iterator[dict[str, torch.Tensor]]:
    """A batch in parts of a size that a step needs: larger ones cost more time than they are worth."""
    rows = len(next(iter(batch.values())))
    for start in range(0, rows, STEP_EXAMPLES):
        yield {name: value[start : start + STEP_EXAMPLES] for name, value in batch.items()}


def _descend(
    model: nn.Module,
    taught: Sequence[Answered],
    judged: Sequence[Answered],
    steps: int,
    learning_rate: float,
) -> ParamTable:
    learnt = [m.log_ratio for m in model.modules() if isinstance(m, LearnableHeadSoftmax)]
    optimiser = torch.optim.Adam(learnt, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    judges = sum(len(target) for _, target in judged)
    compared = judged[:: -(-judges // COMPARED)]  # batches may be sorted by length: some of each
    best, best_table = _distance(model, compared), current_table(model)
    check = max(1, steps // 3)
    for step in track(range(steps), total=steps, description="refining theta"):
        optimiser.zero_grad()
        _divergence(model, *taught[step % len(taught)]).backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % check == 0 or step + 1 == steps:
            now = _distance(model, compared)
            if now < best:
                best, best_table = now, current_table(model)
    provenance = {**best_table.provenance, "refined": {"steps": steps, "kl": best}}
    return replace(best_table, provenance=provenance)


def _divergence(model: nn.Module, batch: Inputs, target: torch.Tensor) -> torch.Tensor:
    mask = batch.get("attention_mask")
    return divergence(model(**batch).logits, target, None if mask is None else mask.bool())


def _distance(model: nn.Module, answered: Sequence[Answered]) -> float:
    """The mean over sentences."""
    with torch.no_grad():
        found = [(len(target), float(_divergence(model, batch, target))) for batch, target in answered]
    return sum(rows * distance for rows, distance in found) / sum(rows for rows, _ in found)
