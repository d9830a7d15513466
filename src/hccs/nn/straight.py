"""The straight-through estimator: values of one computation, the gradient of another."""

from __future__ import annotations

from typing import Any

import torch


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
    """Forward the exact values, bit for bit; backward as if they were the smooth ones."""

    @staticmethod
    def forward(ctx: Any, smooth: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """The exact values."""
        return exact.to(smooth.dtype)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """The gradient goes to the smooth values."""
        return g, None
