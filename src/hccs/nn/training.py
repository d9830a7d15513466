"""Training and what its loops share: `refine`, the straight-through estimator, distillation, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hccs._progress import track
from hccs.nn.attaching import attach, current_table, detach, unchanged
from hccs.nn.batches import device_of, listed, named_inputs, unwrapped
from hccs.nn.slots import LearnableHeadSoftmax
from hccs.numbers.table import ParamTable


def straight(smooth: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The exact values, bit for bit, with the gradient of the smooth ones.

    >>> x = torch.tensor([1.4, 2.6], requires_grad=True)
    >>> y = straight(2 * x, (2 * x).round())
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([3.0, 5.0], [2.0, 2.0])
    """
    return _Straight.apply(smooth, exact)  # type: ignore[no-any-return]


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, smooth: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        return exact.to(smooth.dtype)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return g, None


def divergence(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    counted: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """KL(wanted || logits) of the labels' probabilities, the mean over examples; of values the squared error.

    Of logits per token [batch, n, labels] the mean is over the tokens that `counted` names, or over all.
    With a temperature probabilities are softer, and the result is scaled as gradients need it.

    >>> same = torch.tensor([[0.5, 2.0]])
    >>> divergence(same, same).item(), divergence(torch.tensor([[1.0]]), torch.tensor([[3.0]])).item()
    (0.0, 4.0)
    """
    if counted is not None and logits.ndim == 3:
        logits, wanted = logits[counted], wanted[counted]
    logits, wanted = (part.float().flatten(0, -2) for part in (logits, wanted))
    if logits.shape[-1] == 1:
        return functional.mse_loss(logits, wanted)
    soft = functional.kl_div(
        torch.log_softmax(logits / temperature, -1),
        torch.log_softmax(wanted / temperature, -1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * soft


@contextmanager
def float32_products(*, quick: bool) -> Iterator[None]:
    """In TF32 if `quick`, else in float32, whatever was allowed before and is again afterwards."""
    matmul = torch.backends.cuda.matmul
    # The switch has two names; torch refuses to read the older once the newer was set, as Trainer does.
    newer = "fp32_precision", "tf32" if quick else "ieee"
    name, wanted = newer if hasattr(matmul, "fp32_precision") else ("allow_tf32", quick)
    before = getattr(matmul, name)
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)


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
