"""Weights rounded one column after the other: each makes up for the rounding of those before it (GPTQ).

What is left of a layer's error depends on how its inputs vary together. The result lies on the grid of the
layer's integers, so that lowering rounds it to itself; its step stays, because its largest weight does.
"""

from __future__ import annotations

import torch

from hccs.nn.lowering.parts import Dense, weight_of
from hccs.nn.lowering.quantised import integers_of
from hccs.nn.ridge import RidgeSums
from hccs.numbers.layers import INT8_LIMIT

DAMPING = 0.01
"""Of the mean variance of inputs, added to each."""

BLOCK = 128
"""Columns whose errors reach the columns after them in one product."""

BELOW = 1 - 2.0**-20
"""The largest weight lies so much below 127 steps: float32 may not bring it above, to a larger step."""


def round_weights(module: Dense, sums: RidgeSums) -> bool:
    """Round the weights of a layer inside `hccs.nn.quantised`, given sums over its inputs; adjust its bias.

    Returns whether it did: weights that lowering would round to others stay as they were.
    """
    integers = integers_of(module)
    bias = getattr(module, "bias", None)
    if integers is None or bias is None or float(sums.tokens) == 0:
        return False
    before, weight = integers(), weight_of(module)
    real, old_bias = weight.double().clone(), bias.double().clone()
    columns = torch.as_tensor(before.columns, dtype=torch.float64, device=real.device).expand(real.shape[1])
    step = before.weight_step[:, None]
    mean = sums.c / sums.tokens
    varies = sums.cc / sums.tokens - torch.outer(mean, mean)
    steps = _rounded(real * columns / step, varies / torch.outer(columns, columns))
    largest = steps.abs() == INT8_LIMIT
    new = steps * step / columns * torch.where(largest, BELOW, 1.0)
    weight.copy_(new)
    bias.copy_(old_bias + (real - new) @ mean)
    if torch.equal(integers().weight, steps):
        return True
    weight.copy_(real)
    bias.copy_(old_bias)
    return False


def _rounded(w: torch.Tensor, varies: torch.Tensor) -> torch.Tensor:
    """Integers for weights in steps, [outputs, inputs], whose inputs have this covariance."""
    spread = varies.diagonal()
    order = spread.argsort(descending=True)
    raised = varies[order][:, order].clone()
    raised.diagonal().add_(DAMPING * float(spread.mean().clamp(min=1e-30)))
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(raised)), upper=True)
    w = w[:, order].clone()
    top, where = w.abs().max(1)
    keeps = (
        torch.where(top > INT8_LIMIT - 1, INT8_LIMIT, top.round()) * w.gather(1, where[:, None])[:, 0].sign()
    )
    count = w.shape[1]
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        errors = w.new_zeros(len(w), end - start)
        for j in range(start, end):
            nearest = w[:, j].round().clamp(-INT8_LIMIT, INT8_LIMIT)
            nearest = torch.where(where == j, keeps, nearest)
            error = (w[:, j] - nearest) / upper[j, j]
            w[:, j] = nearest
            w[:, j + 1 : end] -= torch.outer(error, upper[j, j + 1 : end])
            errors[:, j - start] = error
        w[:, end:] -= errors @ upper[start:end, end:]
    back = torch.empty_like(w)
    back[:, order] = w
    return back
