"""Two lines, and one line with wide sums: their forms, and the search over a sample of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.calibration import _native
from hccs.calibration.statistics import GroupSummary, HeadStatistics, with_means
from hccs.errors import ParameterError, require_one_of
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import UINT8_MAX, Mode
from hccs.numbers.region import NARROW, WIDE, Region

SCORES = {"int16": 0, "uint8": 2}
"""The shift f of each kind of scores: two bits more than uint8 leave slopes fine enough."""

LARGEST_BASE = 2047
"""B of int16 scores: slopes are as fine as data can tell, and half precision still holds every score."""

USUAL_SCALE = "largest"
"""In records: one int8 step is a 127th of the largest magnitude."""

LONG_ROWS = 256
"""Longer rows take B as large as sums allow: a thousand far keys share the lowest score, 1 of B."""


OBJECTIVES = ("kl_i16", "output")


@dataclass(frozen=True)
class Form:
    """What a search looks for, and whether it minimises the error of outputs instead of KL."""

    lines: int
    f: int
    sum_bits: int
    output: bool

    @property
    def is_sampled(self) -> bool:
        """False for the paper's form, whose objective has sufficient statistics."""
        return (self.lines, self.sum_bits) != (1, NARROW)

    def largest_base(self, region: Region) -> int:
        if self.f:
            return (min(region.max_base, UINT8_MAX) + 1 << self.f) - 1
        return region.max_base if region.n > LONG_ROWS else min(region.max_base, LARGEST_BASE)


def form_of(lines: int, scores: str, sum_bits: int | None, objective: str) -> Form:
    if lines not in (1, 2) or isinstance(lines, bool):
        raise ParameterError("lines to be 1 or 2", repr(lines), "Two lines are nearly an exponential.")
    require_one_of("scores", scores, SCORES, "See hccs.calibration.search.")
    require_one_of("objective", objective, OBJECTIVES, "See hccs.calibration.search.")
    if sum_bits is None:
        sum_bits = NARROW if lines == 1 else WIDE
    form = Form(lines, SCORES[scores], Region(1, sum_bits).sum_bits, objective == "output")
    if lines == 1 and form.f:
        raise ParameterError("lines=2 for uint8 scores", "lines=1", "One line has no shift f.")
    if form.output and not form.is_sampled:
        raise ParameterError(
            "lines=2 or sum_bits=24 with objective='output'",
            f"lines={lines}, sum_bits={sum_bits}",
            "Errors of outputs are computed from the sampled rows, as wide forms are.",
        )
    return form


@dataclass(frozen=True)
class Fitting:
    """How a form is fitted: `scale` of `hccs.nn.collect` (None: the usual) and `objective` of a search."""

    scale: str | None = None
    objective: str = "kl_i16"

    @property
    def record(self) -> dict[str, str]:
        return {"scale": self.scale or USUAL_SCALE, "objective": self.objective}


def fitting_for(n: int, lines: int, scores: str = "int16", *, causal: bool = False) -> Fitting:
    """How rows of up to `n` columns want a form fitted: see docs/decoders.md, lab/docs/reproduction.md.

    Two lines in long rows minimise the error of outputs; those of causal models take finer steps as well,
    which gain encoders nothing.

    >>> fitting_for(512, lines=2), fitting_for(512, lines=2, causal=True).scale, fitting_for(256, lines=2)
    (Fitting(scale=None, objective='output'), 'rows', Fitting(scale=None, objective='kl_i16'))
    """
    if n <= LONG_ROWS or lines == 1 or SCORES[scores]:
        return Fitting()
    return Fitting("rows" if causal else None, "output")


def search(
    stats: HeadStatistics,
    heads: list[int],
    means: GroupSummary,
    form: Form,
    region: Region,
    interruption: _native.Interruption,
) -> tuple[HeadParams, HeadParams, float]:
    """The best parameters of a group of heads, the second best, and the KL of those."""
    best, second, _ = with_means(
        _native.search_lines, stats, heads, _beyond_int8(stats, heads, means),
        form.largest_base(region), region.floor, form.f, form.lines, form.output, interruption,
    )  # fmt: skip
    kl = float(objectives(stats, heads, [second[:6]])[0]) if form.output else second[6]
    return HeadParams(*best[:6], wide=True), HeadParams(*second[:6], wide=True), kl


def objectives(
    stats: HeadStatistics, heads: Sequence[int], thetas: Any, *, output: bool = False
) -> NDArray[np.float64]:
    """Mean KL(softmax || s / Z) of each of `thetas` [count, 6], over the sampled rows; or outputs' error."""
    means, array = _beyond_int8(stats, heads, stats.summary(heads)), np.ascontiguousarray(thetas, np.int32)
    found: NDArray[np.float64] = with_means(_native.lines_objectives, stats, heads, means, array, output)
    return found


def deployed(
    stats: HeadStatistics, heads: list[int], theta: HeadParams, mode: Mode
) -> tuple[float, float, float]:
    """KL as it is, renormalised KL and mass deficit of wide parameters in `mode`, over the sampled rows.

    Every output is rounded as the mode rounds it; one that is zero counts as half a step.
    """
    means, how = _beyond_int8(stats, heads, stats.summary(heads)), (mode.is_u8, mode.reciprocal)
    found: tuple[float, float, float] = with_means(
        _native.evaluate_lines, stats, heads, means, theta.packed, *how
    )
    return found


def _beyond_int8(stats: HeadStatistics, heads: Sequence[int], means: GroupSummary) -> GroupSummary:
    """What the means of float logits have beyond those of their int8 softmax, which the sampled rows know."""
    if stats.reference == "int8":
        return replace(means, mass=np.zeros_like(means.mass), negative_entropy=0.0)
    quantised = stats.summary(heads, quantised=True)
    return replace(
        means,
        mass=means.mass - quantised.mass,
        negative_entropy=means.negative_entropy - quantised.negative_entropy,
    )
