"""`hccs bench RUN`: the run's integer model beside its float model in other runtimes, on its sentences."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hccs.backends.cpu import instruction_sets
from hccs.conversion.converted import Converted
from hccs.conversion.data.problems import IMAGES
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.report.cost import OURS
from hccs.conversion.runs.record import write_json
from hccs.errors import ParameterError
from hccs.numbers.arrays import require_integer
from hccs_lab.bench.contenders import CONTENDERS, Contender, Material, batch_of
from hccs_lab.bench.runtimes import Batch, in_fresh_process

LONGEST_TURN = 60
DISAGREEMENT = 1.5
"""A ratio to ours is no result where the upper quartile of its turns is so many times the lower."""


@dataclass(frozen=True)
class BenchSettings:
    """How much is timed."""

    batch: int = 64
    group: int | None = None
    """Sort the batch by length and cut it into so many sentences at a time; None pads it as a whole."""
    turns: int = 9
    seconds: float = 0.15
    """The length of one turn of one contender."""

    def __post_init__(self) -> None:
        for name in ("batch", "group", "turns"):
            if (count := getattr(self, name)) is not None:
                require_integer(name, count, 1, 2**31, "Time something.")
        if not 0 <= self.seconds <= LONGEST_TURN:
            raise ParameterError(
                f"seconds between 0 and {LONGEST_TURN}", str(self.seconds), "A turn of 0.15 s is usual."
            )


def bench(
    run: str | Path,
    settings: BenchSettings | None = None,
    file: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Time the run in every runtime that is installed; writes `bench.json` into its folder.

    All take turns in one process, with one thread and with all; a time is the median over turns, and a ratio
    the median of the ratios within turns. Memory and the time to the first answer are those of a process of
    its own. What is not installed, or cannot take the model, is named.
    """
    settings = settings or BenchSettings()
    finished = Converted(Path(run))
    if finished.settings.task.problem == IMAGES:
        raise ParameterError(
            "a run on texts", "one on images", "The runtimes beside ours get sentences only."
        )
    _ = finished.integer_model  # refused before anything is made
    data = finished.examples(file).to("cpu")
    todo = workloads(data, settings.batch, settings.group)
    threads = sorted({1, instruction_sets.info().cores})
    found: dict[str, Any] = {
        "machine": _machine(),
        "settings": {"batch": settings.batch, "group": settings.group, "threads": threads},
        "contenders": {},
        "rows": [],
        "missing": {},
        "failed": {},
    }
    say(describe_load(found["machine"]))
    before = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="hccs-bench-") as folder:
            ready = _ready(Material(finished, data, Path(folder)), todo[-1], threads[-1], found, say)
            for count in threads:
                opened = {name: who.open(path, count) for name, (who, path) in ready.items()}
                for workload in todo:
                    _time(workload, opened, count, settings, found, say)
    finally:
        torch.set_num_threads(before)
    write_json(finished.folder / "bench.json", found)
    return found


def _ready(
    material: Material, workload: Workload, threads: int, found: dict[str, Any], say: Callable[[str], None]
) -> dict[str, tuple[Contender, Path]]:
    """The contenders that can run here, made and tried in processes of their own."""
    ready: dict[str, tuple[Contender, Path]] = {}
    sentences = material.folder / "sentences.npz"
    arrays: dict[str, Any] = dict(workload.batches[-1])
    np.savez(sentences, **arrays)
    expected: Any = None
    for who in CONTENDERS:
        if who.missing:
            found["missing"][who.name] = who.missing
            say(f"{who.name}: left out, it needs: pip install {' '.join(who.missing)}")
            continue
        say(f"{who.name} …")
        try:
            path, size = who.make(material)
            facts = {"bytes": size, **in_fresh_process(who.kind, path, sentences, threads)}
            chosen = _chosen(who.open(path, threads), workload)
        except Exception as error:  # whatever another runtime makes of this model
            if who.name == OURS:
                raise
            found["failed"][who.name] = " ".join(str(error).split())[:300]
            say(f"{who.name}: left out, {found['failed'][who.name]}")
            continue
        expected = chosen if expected is None else expected
        facts["agreement"] = float((chosen == expected).mean())
        found["contenders"][who.name] = facts
        ready[who.name] = (who, path)
        say(
            f"{who.name}: {facts['bytes'] / 2**20:.2f} MiB on disk, {facts['memory'] / 2**20:.0f} MiB of "
            f"memory, first answer after {facts['first_answer']:.2f} s, "
            f"{100 * facts['agreement']:.1f} % of the answers as in float"
        )
    return ready


def _chosen(answer: Callable[..., Any], workload: Workload) -> Any:
    return np.concatenate([np.asarray(answer(batch)).argmax(-1) for batch in workload.batches])


def _time(
    workload: Workload,
    opened: dict[str, Callable[..., Any]],
    threads: int,
    settings: BenchSettings,
    found: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    def call_of(answer: Callable[..., Any]) -> Callable[[], None]:
        def call() -> None:
            for batch in workload.batches:
                answer(batch)

        return call

    calls = {name: call_of(answer) for name, answer in opened.items()}
    times = take_turns(calls, settings.turns, settings.seconds)
    say(
        f"{workload.name}, {workload.tokens} tokens ({workload.padded} with padding), "
        f"{threads} thread{'s' * (threads > 1)}:"
    )
    for name, measured in times.items():
        seconds = statistics.median(measured)
        row = {
            "threads": threads,
            "workload": workload.name,
            "sentences": workload.sentences,
            "tokens": workload.tokens,
            "padded": workload.padded,
            "name": name,
            "ms": 1e3 * seconds,
            "sentences_per_second": workload.sentences / seconds,
            "times_ours": median_ratio(measured, times[OURS]),
            "steady": agree(measured, times[OURS]),
        }
        found["rows"].append(row)
        say(
            f"  {name:38} {row['ms']:9.3f} ms {row['sentences_per_second']:9.0f} sentences/s "
            f"{row['times_ours']:7.2f} times ours{'' if row['steady'] else ', but its turns disagree'}"
        )


def _machine() -> dict[str, Any]:
    versions = {}
    for package in ("numpy", "torch", "transformers", "onnxruntime", "openvino", "nncf"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "system": platform.platform(),
        "cores": instruction_sets.info().cores,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "isa": instruction_sets.info().isa,
        "packages": versions,
    }


def describe_load(machine: Mapping[str, Any]) -> str:
    """How busy the machine was before anything was timed."""
    if machine["load"] is None:
        return f"{machine['cores']} cores; this system does not tell its load"
    busy = machine["load"] > 0.5 * machine["cores"]
    warning = ": other programs are running, and times will vary" if busy else ""
    return f"load of the last minute {machine['load']:.2f} on {machine['cores']} cores{warning}"


@dataclass(frozen=True)
class Workload:
    """Sentences that are answered together: in one padded batch, or in several of similar length."""

    name: str
    batches: tuple[Batch, ...]

    @property
    def sentences(self) -> int:
        return sum(len(batch["input_ids"]) for batch in self.batches)

    @property
    def tokens(self) -> int:
        return sum(int(batch["attention_mask"].sum()) for batch in self.batches)

    @property
    def padded(self) -> int:
        return sum(batch["input_ids"].size for batch in self.batches)


def workloads(data: TokenisedSet, count: int, group: int | None) -> list[Workload]:
    """One sentence of median length, and the first `count` of the data.

    Without a `group` these are one batch in the order in which they came, padded to the longest, as
    `tokenizer(texts, padding=True)` makes it. With one they are sorted by length and cut into batches of so
    many: what a careful user of a runtime that computes padding would do.
    """
    chosen = range(min(count, len(data)))
    by_length = sorted(chosen, key=data.lengths.__getitem__)
    one = Workload("1 sentence", (batch_of(data, [by_length[len(by_length) // 2]]),))
    if group is None:
        parts: list[Sequence[int]] = [chosen]
    else:
        parts = [by_length[start : start + group] for start in range(0, len(by_length), group)]
    many = Workload(f"{len(chosen)} sentences", tuple(batch_of(data, part) for part in parts))
    return [one, many]


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


def agree(times: list[float], base: list[float]) -> bool:
    """Whether the turns tell one ratio: the upper quartile is less than `DISAGREEMENT` times the lower."""
    ratios = [mine / theirs for mine, theirs in zip(times, base, strict=True)]
    if len(ratios) < 2:
        return True
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return high < DISAGREEMENT * low
