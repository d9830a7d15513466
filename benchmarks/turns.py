"""Contenders that take turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]
Cell = dict[str, Any]

SLOW = 1.0  # seconds of a call for which two turns are enough
FAR = 4.0  # times the fastest call: so far behind two turns are enough, too


def seconds_of(call: Call, repeats: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def best_times(calls: dict[str, Callable[[], object]], turns: int, seconds: float = 0.01) -> dict[str, float]:
    """Best seconds per call of each, timed in turns."""
    counts, best = {}, dict.fromkeys(calls, float("inf"))
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    for _ in range(turns):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / counts[name])
    return best


def in_turns(
    calls: Mapping[str, Call], turns: int, seconds: float, pick: Callable[[list[float]], float]
) -> dict[str, float]:
    """Seconds of one call of each: what `pick` takes of the means of its turns, which last so long."""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = seconds_of(call)
    slow = min(SLOW, FAR * min(repeats.values(), default=0))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name, call in calls.items():
            if turn >= 2 and repeats[name] > slow:
                continue
            call()  # threads of the one before may still spin, and caches hold its data
            found[name].append(seconds_of(call, max(1, int(seconds / repeats[name]))))
    return {name: pick(times) for name, times in found.items()}


def cell(name: str, ours: str, peers: list[str], seconds: dict[str, float], **more: Any) -> Cell:
    """What was timed, and how much faster ours is than the fastest peer."""
    best = min((peer for peer in peers if peer in seconds), key=seconds.__getitem__)
    over = seconds[best] / seconds[ours]
    return {"name": name, "seconds": seconds, "fastest_peer": best, "over": over, **more}
