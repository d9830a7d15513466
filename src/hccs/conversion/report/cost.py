"""What `hccs bench` has measured of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hccs.conversion.runs.record import read_typed

OURS, FLOAT = "hccs, all in integers", "torch float32"
"""Names of contenders in `bench.json`."""


@dataclass(frozen=True)
class MachineFacts:
    system: str
    cores: int
    isa: str
    packages: dict[str, str]


@dataclass(frozen=True)
class ContenderFigures:
    bytes: int
    memory: int
    first_answer: float
    """Seconds until it was there."""
    agreement: float


@dataclass(frozen=True)
class Timing:
    workload: str
    threads: int
    name: str
    ms: float
    times_ours: float
    sentences_per_second: float
    steady: bool = True
    """Whether the turns of the measurement agree."""


@dataclass(frozen=True)
class Bench:
    """What `hccs bench` has left in a run's folder."""

    machine: MachineFacts
    contenders: dict[str, ContenderFigures]
    rows: tuple[Timing, ...]
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


SHIPPED = ("", "MiB on disk", "MiB resident", "s to first answer", "% answers as float")


def shipped(bench: Bench) -> list[list[str]]:
    """The rows of `SHIPPED`: what has to be shipped and held for every contender."""
    return [
        [
            name,
            f"{one.bytes / 2**20:.2f}",
            f"{one.memory / 2**20:.0f}",
            f"{one.first_answer:.2f}",
            f"{100 * one.agreement:.1f}",
        ]
        for name, one in bench.contenders.items()
    ]


def read_bench(folder: Path) -> Bench | None:
    """What `hccs bench` found, if it was run; an altered file is refused."""
    path = folder / "bench.json"
    return read_typed(Bench, path, "Delete that file, or run hccs bench.") if path.exists() else None


def speed_against_float(bench: Bench | None) -> float | None:
    """How many times as fast as float PyTorch one sentence is on one thread, if that was measured.

    There is no such number where the turns of the measurement disagree.
    """
    rows = [] if bench is None else [row for row in bench.rows if row.threads == 1 and row.name == FLOAT]
    return rows[0].times_ours if rows and rows[0].steady else None
