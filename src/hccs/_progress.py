"""A progress bar for work that takes longer than two seconds; silent before, and without `rich`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds before a bar appears."""


def track(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items; once two seconds have passed, show on a terminal how many of `total` are done.

    >>> list(track(range(3), total=3, description="counting"))
    [0, 1, 2]
    """
    started, bar, task = time.monotonic(), None, None
    try:
        for done, item in enumerate(items, 1):
            yield item
            if bar is None and time.monotonic() - started > PATIENCE and sys.stderr.isatty():
                try:
                    from rich.console import Console
                    from rich.progress import Progress
                except ModuleNotFoundError:
                    continue
                bar = Progress(console=Console(stderr=True), transient=True)
                bar.start()
                task = bar.add_task(description, total=total)
            if bar is not None and task is not None:
                bar.update(task, completed=done)
    finally:
        if bar is not None:
            bar.stop()
