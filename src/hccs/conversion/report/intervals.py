"""How sure a score is: intervals that hold 95 % of what chance brings."""

from __future__ import annotations

import math

Z = 1.959964
"""Standard deviations on either side of a mean that hold 95 % of a normal distribution."""


def of_share(share: float, examples: int) -> tuple[float, float]:
    """Wilson's interval of a share of so many examples: it stays within 0 and 1.

    >>> tuple(round(end, 4) for end in of_share(0.8, 1000))
    (0.7741, 0.8236)
    """
    middle = share + Z**2 / (2 * examples)
    reach = Z * math.sqrt(share * (1 - share) / examples + Z**2 / (4 * examples**2))
    low, high = ((middle + sign * reach) / (1 + Z**2 / examples) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def of_error(value: float, error: float) -> tuple[float, float]:
    """The interval of a value with a standard error."""
    return value - Z * error, value + Z * error
