"""Times of several functions that take turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


def take_turns(calls: Mapping[str, Call], turns: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of one call, by name and turn: the mean over about `seconds` of calls in each turn.

    Every turn begins with a call that is not timed: threads of the one before may still be spinning.
    """
    repeats = {name: _repeats(call, seconds) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            call()
            began = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            found[name].append((time.perf_counter() - began) / repeats[name])
    return found


def _repeats(call: Call, seconds: float) -> int:
    call()
    began = time.perf_counter()
    call()
    return max(1, int(seconds / (time.perf_counter() - began)))


def median_ratio(times: list[float], base: list[float]) -> float:
    """How many times as long as `base`: the median over turns, within each of which they were neighbours."""
    return statistics.median(mine / theirs for mine, theirs in zip(times, base, strict=True))
