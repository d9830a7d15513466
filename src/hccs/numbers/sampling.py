"""`Sampling`: how the next token is chosen, as integers that are the same on every machine."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hccs.errors import ParameterError

OCTAVE = 1 << 10
"""Steps in which a weight halves."""

WEIGHT_BITS = 28
"""The largest weight is 2^28, so that a million of them, times 2^16, fit 64 bits."""

MOST_SCORES = 1 << 20

ONE = 1 << 16
"""Temperature and top_p are multiples of 1 / 65,536."""

FACTOR_BITS = 31
MOST_SHIFT = 62
SEEDS = 1 << 64

_BITS = 128
_LN2 = 0xB17217F7D1CF79ABC9E3B39803F2F6AF  # ln 2 times 2^128, rounded down


@functools.cache
def powers() -> NDArray[np.uint32]:
    """round(2^28 * 2^(-j / 1024)) for j from 0 to 1023, by square roots of integers."""
    roots = []  # 2^(-1/2), 2^(-1/4), ... times 2^128
    root = 1 << (_BITS - 1)  # 2^(-1)
    for _ in range(OCTAVE.bit_length() - 1):
        root = math.isqrt(root << _BITS)
        roots.append(root)
    entries = []
    for j in range(OCTAVE):
        power = 1 << _BITS
        for bit, root in enumerate(reversed(roots)):
            if j >> bit & 1:
                power = power * root >> _BITS
        entries.append((power + (1 << (_BITS - WEIGHT_BITS - 1))) >> (_BITS - WEIGHT_BITS))
    table = np.array(entries, np.uint32)
    table.flags.writeable = False
    return table


def score_factor(score_scale: float) -> tuple[int, int]:
    """(A, a): A / 2^a is the number of steps of a score, 1024 / ln 2 times its scale; A has 31 bits.

    The scale is a float64, and taken as exactly that rational number.
    """
    if not (math.isfinite(score_scale) and score_scale > 0):
        raise ParameterError("a positive score_scale", repr(score_scale), "Lower the model again.")
    return _normalised(Fraction(score_scale) * OCTAVE * (1 << _BITS) / _LN2)


def _normalised(value: Fraction) -> tuple[int, int]:
    """A and a with A / 2^a next to a positive value, and 2^30 <= A < 2^31."""
    shift = FACTOR_BITS + value.denominator.bit_length() - value.numerator.bit_length()
    nearest = math.floor(value * Fraction(2) ** shift + Fraction(1, 2))
    while nearest >> FACTOR_BITS:  # the guess is at most one too large, and rounding may carry
        shift -= 1
        nearest = math.floor(value * Fraction(2) ** shift + Fraction(1, 2))
    return nearest, shift


@dataclass(frozen=True)
class Sampling:
    """The choice of a token from scores: the largest at temperature 0, or a draw by weights.

    `temperature` divides the scores. Tokens are ordered by falling weight, those of one weight by rising id:
    a draw sees the first `top_k`, and of these the shortest beginning with at least the share `top_p` of
    their weights.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _require_number("temperature", self.temperature)
        if self.temperature and not 1 <= self.temperature_steps < SEEDS >> 32:
            raise ParameterError(
                "temperature 0, the largest score, or from 1 / 65536 to 65535",
                repr(self.temperature),
                "1 draws by the model's own probabilities.",
            )
        if self.top_k is not None and (
            not isinstance(self.top_k, int | np.integer) or isinstance(self.top_k, bool) or self.top_k < 1
        ):
            raise ParameterError("top_k, at least 1", repr(self.top_k), "Leave it out to draw from all.")
        if self.top_p is not None:
            _require_number("top_p", self.top_p)
            if not 0 < self.top_p <= 1:
                raise ParameterError(
                    "top_p above 0, at most 1", repr(self.top_p), "Leave it out to draw from all."
                )

    @property
    def temperature_steps(self) -> int:
        """The temperature in steps of 1 / 65,536."""
        return round(Fraction(self.temperature) * ONE)

    @property
    def share(self) -> int:
        """`top_p` in steps of 1 / 65,536."""
        return ONE if self.top_p is None else max(round(Fraction(self.top_p) * ONE), 1)

    def factor(self, score_scale: float) -> tuple[int, int]:
        """(R, r): a distance d between scores is (d * R + 2^(r - 1)) >> r steps; r is from 1 to 62."""
        A, a = score_factor(score_scale)
        R, r = (A << 32) // self.temperature_steps, a + 16
        while R >= 1 << FACTOR_BITS:
            R, r = R >> 1, r - 1
        if r > MOST_SHIFT:
            R, r = R >> min(r - MOST_SHIFT, FACTOR_BITS), MOST_SHIFT
        return (R, r) if r >= 1 else ((1 << FACTOR_BITS) - 1, 1)


def _require_number(name: str, value: object) -> None:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not math.isfinite(value):  # type: ignore[arg-type]
        raise ParameterError(f"{name}, a finite number", repr(value), "See docs/decoders.md.")


def require_seed(seed: object) -> int:
    """The seed as an integer of 64 bits; any other is refused."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
        raise ParameterError("a seed from 0 to 2^64 - 1", repr(seed), "Leave it out to draw one.")
    return int(seed)
