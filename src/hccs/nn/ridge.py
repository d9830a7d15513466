"""Ridge regression from sums alone: what of activations and errors is kept streams, and merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from hccs.nn.precision import float32_products

RIDGES = tuple(10.0 ** (-power / 2) for power in range(8, -1, -1))
"""1e-4 to 1, in half decades, of the mean diagonal of the activations' second moments."""


@dataclass
class RidgeSums:
    """Sums over tokens of activations c [tokens, inputs] and of errors e [tokens, outputs], in float64.

    Products are of a part's tokens, in float32 at least; parts are added in float64. Two sums merge by `+`.

    >>> part = RidgeSums.of(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[2.0], [4.0], [6.0]]))
    >>> weight, bias = (part + part).solve(1e-9)
    >>> round(weight.item(), 6), round(part.error(), 6), round(part.error(weight, bias), 6)
    (2.0, 56.0, 0.0)
    """

    tokens: torch.Tensor
    c: torch.Tensor
    e: torch.Tensor
    cc: torch.Tensor
    ce: torch.Tensor
    ee: torch.Tensor
    """Of the squared errors, one number."""

    @classmethod
    def empty(cls, inputs: int, outputs: int, device: torch.device | str = "cpu") -> RidgeSums:
        """Those of no token."""
        shapes = ((), (inputs,), (outputs,), (inputs, inputs), (inputs, outputs), ())
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    @classmethod
    def of(cls, c: torch.Tensor, e: torch.Tensor) -> RidgeSums:
        """Those of some tokens."""
        return cls.empty(c.shape[-1], e.shape[-1], c.device).add(c, e)

    def add(self, c: torch.Tensor, e: torch.Tensor) -> RidgeSums:
        """Count more tokens in; returns itself."""
        c, e = (part if part.dtype == torch.float64 else part.float() for part in (c, e))
        self.tokens += len(c)
        self.c += c.sum(0, dtype=torch.float64)
        self.e += e.sum(0, dtype=torch.float64)
        with float32_products(quick=False):  # where training may have allowed less
            self.cc += c.T @ c
            self.ce += c.T @ e
        self.ee += e.square().sum(dtype=torch.float64)
        return self

    def __add__(self, other: RidgeSums) -> RidgeSums:
        return RidgeSums(*(mine + others for mine, others in zip(self._all, other._all, strict=True)))

    @property
    def _all(self) -> Sequence[torch.Tensor]:
        return [getattr(self, part.name) for part in fields(self)]

    def all_reduce(self) -> None:
        """Make them those of all processes."""
        import torch.distributed as dist

        for part in self._all:
            dist.all_reduce(part)

    def is_finite(self) -> bool:
        """Whether no token had NaN or infinity."""
        return bool(torch.isfinite(self.ee) & torch.isfinite(self.cc).all())

    def solve(self, ridge: float, *, bias: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """W [outputs, inputs] and b [outputs] that minimise the sum of |e - W c - b|^2, plus a ridge on W.

        The ridge is `ridge` times the mean diagonal of the activations' (centred) second moments, times
        |W|^2; b is free of it, or 0 without `bias`.
        """
        if not bias:
            return self._weight(self.cc, self.ce, ridge), torch.zeros_like(self.e)
        count = self.tokens.clamp(min=1)
        cc = self.cc - torch.outer(self.c, self.c / count)
        weight = self._weight(cc, self.ce - torch.outer(self.c, self.e / count), ridge)
        return weight, (self.e - weight @ self.c) / count

    @staticmethod
    def _weight(cc: torch.Tensor, ce: torch.Tensor, ridge: float) -> torch.Tensor:
        diagonal = cc.diagonal()
        raised = cc.clone()
        raised.diagonal().add_(ridge * diagonal.mean().clamp(min=torch.finfo(torch.float64).tiny))
        return torch.cholesky_solve(ce, torch.linalg.cholesky(raised)).T

    def error(self, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> float:
        """The sum of |e - W c - b|^2; without them that of |e|^2."""
        if weight is None or bias is None:
            return float(self.ee)
        crossed = (weight.T * self.ce).sum() + bias @ self.e
        squared = ((weight @ self.cc) * weight).sum() + 2 * bias @ (weight @ self.c)
        return max(float(self.ee - 2 * crossed + squared + self.tokens * bias @ bias), 0.0)


@dataclass(frozen=True)
class Chosen:
    """A correction of a matrix, or none; and the errors of the tokens that chose, without and with it."""

    ridge: float | None
    """None: the matrix stays as it was."""
    weight: torch.Tensor
    bias: torch.Tensor
    before: float
    after: float


def choose(fitted: RidgeSums, held_back: RidgeSums, *, bias: bool = True) -> Chosen:
    """The ridge of `RIDGES` whose solution on some tokens leaves least error on others; or no change.

    The correction itself is then solved from all of them.
    """
    before = held_back.error()
    best, after = None, before
    if float(fitted.tokens) > 0:
        for ridge in RIDGES:
            left = held_back.error(*fitted.solve(ridge, bias=bias))
            if left < after:
                best, after = ridge, left
    if best is None:
        return Chosen(None, torch.zeros_like(fitted.ce.T), torch.zeros_like(fitted.e), before, before)
    return Chosen(best, *(fitted + held_back).solve(best, bias=bias), before, after)
