"""Ridge regression from sums alone: sums of activations and errors stream, and merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from hccs.nn.training import float32_products

RIDGES = tuple(10.0 ** (-power / 2) for power in range(8, -1, -1))
"""1e-4 to 1, in half decades, of the mean diagonal of the activations' second moments."""

TOKENS = 8192
"""Tokens of which products are taken at once: adding those of a batch to float64 sums would take longer."""

COLUMNS = 512
"""A symmetric product is computed in stripes of this many columns, above the diagonal alone."""


@dataclass
class RidgeSums:
    """Sums over tokens of activations c [tokens, inputs] and of errors e [tokens, outputs], in float64.

    Products of one `add` are float32 at least; those of several are added in float64. Two sums merge by `+`.

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
    """The sum of squared errors, one number."""

    @classmethod
    def empty(cls, inputs: int, outputs: int, device: torch.device | str = "cpu") -> RidgeSums:
        shapes = ((), (inputs,), (outputs,), (inputs, inputs), (inputs, outputs), ())
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    @classmethod
    def of(cls, c: torch.Tensor, e: torch.Tensor) -> RidgeSums:
        return cls.empty(c.shape[-1], e.shape[-1], c.device).add(c, e)

    def add(self, c: torch.Tensor, e: torch.Tensor) -> RidgeSums:
        """Count more tokens in; returns itself."""
        if not len(c):
            return self
        c, e = (part if part.dtype == torch.float64 else part.float() for part in (c, e))
        # Sums and products are of distances from the mean of these tokens: where channels lie far from zero,
        # float32 products of the values themselves lose what varies.
        near_c, near_e = c.mean(0), e.mean(0)
        c, e = c - near_c, e - near_e
        with float32_products(quick=False):  # where training may have allowed less
            self.cc += _symmetric_product(c)
            self.ce += c.T @ e
        near_c, near_e = near_c.double(), near_e.double()
        sum_c, sum_e = c.sum(0) + len(c) * near_c, e.sum(0) + len(e) * near_e
        for products, near, total in ((self.cc, near_c, sum_c), (self.ce, near_e, sum_e)):
            products.addr_(near_c, total).addr_(sum_c - len(c) * near_c, near)
        self.ee += (e.square().sum(0, dtype=torch.float64) + 2 * near_e * sum_e - len(c) * near_e**2).sum()
        self.tokens += len(c)
        self.c += sum_c
        self.e += sum_e
        return self

    def __add__(self, other: RidgeSums) -> RidgeSums:
        return RidgeSums(*(mine + others for mine, others in zip(self._all, other._all, strict=True)))

    @property
    def _all(self) -> Sequence[torch.Tensor]:
        return [getattr(self, part.name) for part in fields(self)]

    def all_reduce(self) -> None:
        """Add those of all processes."""
        import torch.distributed as dist

        for part in self._all:
            dist.all_reduce(part)

    def is_finite(self) -> bool:
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
        typical = float(cc.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny))
        while True:
            raised = cc.clone()
            raised.diagonal().add_(ridge * typical)
            factor, failed = torch.linalg.cholesky_ex(raised)
            if not int(failed):
                return torch.cholesky_solve(ce, factor).T
            ridge *= 10  # rounding has made the sums indefinite: take one above their noise

    def error(self, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> float:
        """The sum of |e - W c - b|^2; without them that of |e|^2."""
        if weight is None or bias is None:
            return float(self.ee)
        crossed = (weight.T * self.ce).sum() + bias @ self.e
        squared = ((weight @ self.cc) * weight).sum() + 2 * bias @ (weight @ self.c)
        return max(float(self.ee - 2 * crossed + squared + self.tokens * bias @ bias), 0.0)


def _symmetric_product(c: torch.Tensor) -> torch.Tensor:
    width = c.shape[-1]
    if width <= COLUMNS:
        return c.T @ c
    product = c.new_empty(width, width)
    for start in range(0, width, COLUMNS):
        stripe = c[:, start : start + COLUMNS].T @ c[:, start:]
        product[start : start + COLUMNS, start:] = stripe
        product[start:, start : start + COLUMNS] = stripe.T
    return product


class RidgeFit:
    """Sums of tokens to solve from and of tokens that choose the ridge."""

    def __init__(self, inputs: int, outputs: int, device: torch.device | str = "cpu") -> None:
        self.sums = tuple(RidgeSums.empty(inputs, outputs, device) for _ in range(2))
        self._waiting: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], []]

    def add(self, c: torch.Tensor, e: torch.Tensor, fitted: torch.Tensor, held_back: torch.Tensor) -> None:
        """Count the rows `fitted` and `held_back` of activations and errors."""
        for waiting, sums, rows in zip(self._waiting, self.sums, (fitted, held_back), strict=True):
            waiting.append((c[rows], e[rows]))
            if sum(len(part) for part, _ in waiting) >= TOKENS:
                _empty(waiting, sums)

    def finished(self) -> tuple[RidgeSums, RidgeSums]:
        """The sums to solve from and those that choose, over all tokens."""
        for waiting, sums in zip(self._waiting, self.sums, strict=True):
            _empty(waiting, sums)
        fitted, held_back = self.sums
        return fitted, held_back


def _empty(waiting: list[tuple[torch.Tensor, torch.Tensor]], sums: RidgeSums) -> None:
    if waiting:
        sums.add(*(torch.cat(parts) for parts in zip(*waiting, strict=True)))
        waiting.clear()


@dataclass(frozen=True)
class Chosen:
    """A correction of a matrix, or none; and the errors of held-back tokens without and with it."""

    ridge: float | None
    """None: the matrix stays as it was."""
    weight: torch.Tensor
    bias: torch.Tensor
    before: float
    after: float


def choose(fitted: RidgeSums, held_back: RidgeSums, *, bias: bool = True) -> Chosen:
    """The ridge whose solution on some tokens leaves the least error on others; or no change.

    Ridges grow for as long as the error falls. The correction itself is solved from all tokens.
    """
    before = held_back.error()
    best, after, lowest = None, before, float("inf")
    for ridge in RIDGES if float(fitted.tokens) > 0 else ():
        left = held_back.error(*fitted.solve(ridge, bias=bias))
        if left > lowest:
            break
        lowest = left
        if left < after:
            best, after = ridge, left
    if best is None:
        return Chosen(None, torch.zeros_like(fitted.ce.T), torch.zeros_like(fitted.e), before, before)
    return Chosen(best, *(fitted + held_back).solve(best, bias=bias), before, after)
