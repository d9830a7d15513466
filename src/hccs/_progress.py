"""Progress of work that takes longer than two seconds: a bar on a terminal, silent elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds before a bar appears."""


class Bar:
    """How many of `total` are done; nothing is shown at first, without a terminal, or without `rich`."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total = description, total
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, items: int | None = None) -> None:
        """`items` are counted beside what is measured by `total`: their rate is shown."""
        if self._bar is None and time.monotonic() - self._started > PATIENCE and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ModuleNotFoundError:
                return
            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._description, total=self._total)
        if self._bar is not None:
            rate = f", {items / (time.monotonic() - self._started):,.0f}/s" if items else ""
            self._bar.update(self._task, completed=done, description=self._description + rate)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def track(items: Iterable[T], total: int | None, description: str) -> Iterator[T]:
    """Yield the items; once two seconds have passed, show on a terminal how many of `total` are done.

    >>> list(track(range(3), total=3, description="counting"))
    [0, 1, 2]
    """
    with Bar(description, total) as bar:
        for done, item in enumerate(items, 1):
            yield item
            bar.update(done)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(3.25), duration(184), duration(7300)
    ('3.2 s', '3 min 4 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
