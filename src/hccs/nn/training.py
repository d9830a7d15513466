"""What training loops share: the straight-through estimator, distillation, the precision of products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional


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
