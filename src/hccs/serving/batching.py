"""Dynamic batching: texts of many requests run together on a few threads, in the order in which they came."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hccs.errors import HccsError
from hccs.text.text_model import Answers


class Overloaded(HccsError):
    """More texts are waiting than the server takes."""


class Answering(Protocol):
    """What the batcher asks of a model: `TextModel.answers`, called from several threads."""

    def answers(self, texts: Sequence[Any], *, dims: int | None, threads: int | None) -> Answers: ...


@dataclass(eq=False)
class Job:
    """Texts of one request that run in one batch, and where their answers go."""

    texts: Sequence[Any]
    dims: int | None
    answer: asyncio.Future[Answers]
    loop: asyncio.AbstractEventLoop
    arrived: float = field(default_factory=time.perf_counter)
    began: float = 0.0


@dataclass(frozen=True)
class Limits:
    """How requests are batched, and how many texts may wait."""

    threads: int
    max_batch: int = 32
    max_wait: float = 0.0
    max_queue: int = 8192


class Batcher:
    """A bounded queue of jobs, and as many threads as the model may use.

    A thread that is free takes what is waiting, up to `max_batch` texts, so that batches grow with the load
    and nobody waits for others on an idle server; `max_wait` seconds hold a batch back to let it grow. One
    job that is alone gets all threads of the engine. Answers depend on none of this.
    """

    def __init__(
        self,
        model: Answering,
        limits: Limits,
        on_batch: Callable[[int, float], None] = lambda texts, seconds: None,
    ) -> None:
        self._model, self._limits, self._on_batch = model, limits, on_batch
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._waiting = self._busy = 0
        self._closed = False
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(limits.threads)]
        for worker in self._workers:
            worker.start()

    @property
    def waiting(self) -> int:
        """Texts that no thread has taken yet."""
        return self._waiting

    async def answers(self, texts: Sequence[Any], dims: int | None = None) -> tuple[Answers, float, float]:
        """The answers, and the seconds that the texts waited and ran; `Overloaded` if the queue is full."""
        loop = asyncio.get_running_loop()
        most = self._limits.max_batch
        pieces = [texts[i : i + most] for i in range(0, len(texts), most)]
        jobs = [Job(piece, dims, loop.create_future(), loop) for piece in pieces]
        with self._changed:
            if self._waiting and self._waiting + len(texts) > self._limits.max_queue:
                raise Overloaded(
                    f"at most {self._limits.max_queue} waiting texts",
                    f"{self._waiting} and {len(texts)} more",
                    "Try again in a moment.",
                )
            self._waiting += len(texts)
            self._jobs.extend(jobs)
            self._changed.notify(len(jobs))
        parts = [await jobs[0].answer] if len(jobs) == 1 else await asyncio.gather(*(j.answer for j in jobs))
        now, began = time.perf_counter(), min(job.began for job in jobs)
        return _joined(parts), began - jobs[0].arrived, now - began

    def close(self) -> None:
        """Finish what is waiting, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while batch := self._next():
            began = time.perf_counter()
            for job in batch:
                job.began = began
            try:
                self._run(batch)
            finally:
                with self._changed:
                    self._busy -= 1
            self._on_batch(sum(len(job.texts) for job in batch), time.perf_counter() - began)

    def _next(self) -> list[Job]:
        """The jobs of the next batch, all with the same `dims`; none once the batcher is closed and empty."""
        limits = self._limits
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if limits.max_wait and self._jobs:
                    left = self._jobs[0].arrived + limits.max_wait - time.perf_counter()
                    self._changed.wait_for(lambda: self._waiting >= limits.max_batch or self._closed, left)
                if self._jobs:
                    break
                if self._closed:
                    return []
            # Threads that are free share what is waiting.
            most = min(limits.max_batch, math.ceil(self._waiting / (limits.threads - self._busy)))
            batch = [self._jobs.popleft()]
            texts = len(batch[0].texts)
            while self._jobs and self._jobs[0].dims == batch[0].dims:
                if texts + len(self._jobs[0].texts) > most:
                    break
                batch.append(self._jobs.popleft())
                texts += len(batch[-1].texts)
            self._waiting -= texts
            self._busy += 1
            return batch

    def _run(self, batch: list[Job]) -> None:
        texts = [text for job in batch for text in job.texts]
        threads = max(1, self._limits.threads // self._busy)
        try:
            found = self._model.answers(texts, dims=batch[0].dims, threads=threads)
        except Exception as error:
            if len(batch) == 1:
                _deliver([(batch[0], error)])
            else:  # one request's fault is not the others'
                for job in batch:
                    self._run([job])
            return
        start, settled = 0, []
        for job in batch:
            end = start + len(job.texts)
            settled.append(
                (job, Answers(found.rows[start:end], found.tokens[start:end], found.cut[start:end]))
            )
            start = end
        _deliver(settled)


def _deliver(settled: Sequence[tuple[Job, Answers | Exception]]) -> None:
    def set_results() -> None:
        for job, result in settled:
            if job.answer.done():  # its request was cancelled
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        settled[0][0].loop.call_soon_threadsafe(set_results)


def _joined(parts: Sequence[Answers]) -> Answers:
    if len(parts) == 1:
        return parts[0]
    return Answers(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.cut for part in parts]),
    )
