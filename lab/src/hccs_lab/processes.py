"""A pool of processes for work that shares nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_any
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from hccs._progress import track
from hccs.errors import HccsError

Item = TypeVar("Item")


def in_processes(work: Callable[[Item], None], items: Sequence[Item], jobs: int, description: str) -> None:
    """Do the work on every item, `jobs` processes at a time: one small model cannot keep a GPU busy.

    When an item fails, or the user interrupts, the processes are ended; they end, too, if this one is killed.
    """
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as pool:
        try:
            with _interrupts_held():
                waiting = [pool.submit(work, item) for item in items]
            children = set(multiprocessing.active_children()) - before
            for done in track(_finished(waiting, children), total=len(waiting), description=description):
                done.result()
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise HccsError(
                    "every process to finish its work",
                    "one that was killed",
                    "Memory may have run out: take fewer --jobs. The same command goes on.",
                ) from error
            raise


def _finished(waiting: Sequence[Future[None]], children: set[Any]) -> Iterator[Future[None]]:
    """The futures as they are done.

    The pool itself may not notice that a process was killed which it started after it began to watch the
    others, and would wait for its work for ever: so they are looked at here, too.
    """
    pending = set(waiting)
    while pending:
        done, pending = wait_for_any(pending, timeout=1.0, return_when=FIRST_COMPLETED)
        yield from done
        if pending and any(child.exitcode for child in children):
            raise BrokenProcessPool("a process was killed")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C back; a process started meanwhile never sees it.

    It reaches every process of the group at once, and it is for the first one to end the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that the work imports
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
