"""Which form of HCCS a conversion takes: one line or two, the width of its scores and of its sums."""

from __future__ import annotations

from dataclasses import dataclass

from hccs.calibration.two_lines import SCORES
from hccs.errors import ParameterError
from hccs.numbers.region import NARROW, WIDE, Region

LONGEST_UINT8 = 128
"""Columns up to which two lines have uint8 scores unless told: operands of one int8 product with v, the
fastest form on CPUs. In longer rows a smallest score of 1 in 255 gives too much to what lies far away."""

USUAL_DISTANCE = 64
"""Steps from the maximum within which heads lose their mass: about what calibration finds as D."""


@dataclass(frozen=True)
class LineForm:
    """How many lines a score has, whether it is int16 or uint8, and the bits of a row's sum."""

    lines: int
    scores: str
    sum_bits: int

    def reason(self, retrains: bool) -> str:
        """Why, for the log of a run."""
        if self.lines == 2:
            return "" if retrains else ": close enough to softmax without any training"
        return "" if self.sum_bits == NARROW else ": rows this long would leave 15 bits no useful slope"

    def __str__(self) -> str:
        sums = "" if self.lines == 2 or self.sum_bits == NARROW else f", sums of {self.sum_bits} bits"
        return f"{'two lines' if self.lines == 2 else 'one line'}, {self.scores} scores{sums}"


def chosen_form(n: int, lines: int | None, scores: str | None, retrains: bool) -> LineForm:
    """The form for rows of up to n columns; what is not given is chosen.

    Without retraining two lines, which need none, with uint8 scores up to 128 columns. With it one line, the
    paper's, whose sums are wide where 15 bits would leave scores without a useful slope.

    >>> print(chosen_form(64, None, None, retrains=False))
    two lines, uint8 scores
    >>> print(chosen_form(512, None, None, retrains=True))
    one line, int16 scores, sums of 24 bits
    """
    if isinstance(lines, bool) or lines not in (None, 1, 2):
        raise ParameterError("lines 1 or 2", repr(lines), "Choose other --lines, or leave it out.")
    if scores not in (None, *SCORES):
        raise ParameterError(f"scores {' or '.join(SCORES)}", repr(scores), "Choose other --scores.")
    lines = lines or (1 if retrains else 2)
    if lines == 2:
        return LineForm(2, scores or ("uint8" if n <= LONGEST_UINT8 else "int16"), WIDE)
    if scores == "uint8":
        raise ParameterError(
            "two lines for uint8 scores", "one line", "Add --lines 2, or leave --scores out."
        )
    return LineForm(1, "int16", NARROW if has_useful_slope(n) else WIDE)


def has_useful_slope(n: int) -> bool:
    """Whether one line whose sums have 15 bits may fall by more than one step a distance."""
    return Region(n).max_slope(USUAL_DISTANCE) > 1
