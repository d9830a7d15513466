"""Latency and size of a run against its float model: what `hccs bench` has measured, and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hccs._html.charts import bar
from hccs._html.elements import Markup, tag
from hccs.conversion.converted import Converted
from hccs.conversion.report.page import boxed, command, paragraph
from hccs.conversion.runs.record import read_json, typed

OURS, FLOAT = "hccs, all in integers", "torch float32"
"""Names of contenders in `bench.json`."""


@dataclass(frozen=True)
class Machine:
    system: str
    cores: int
    isa: str
    packages: dict[str, str]


@dataclass(frozen=True)
class Contender:
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

    machine: Machine
    contenders: dict[str, Contender]
    rows: tuple[Timing, ...]
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def read_bench(folder: Path) -> Bench | None:
    """What `hccs bench` found, if it was run; an altered file is refused."""
    path, hint = folder / "bench.json", "Delete that file, or run hccs bench."
    if not path.exists():
        return None
    found: Bench = typed(Bench, read_json(path, hint), path, hint)
    return found


def size_section(run: Converted) -> list[Markup]:
    """Bytes of the float model and of what is delivered."""
    sizes = {"float32 weights": _weights(run.folder / "float")}
    integer = run.results.integer
    if integer is not None and integer.reached is not None:
        sizes = {"float32 weights": integer.float32_bytes, "all in integers, model.hccs": integer.bytes}
    else:
        sizes["with HCCS, model/"] = _weights(run.model)
    longest = max(sizes.values()) or 1
    rows = [
        [
            name,
            f"{size / 2**20:.2f} MiB",
            f"{size / longest:.2f}",
            bar(size, longest, ours="float" not in name),
        ]
        for name, size in sizes.items()
    ]
    return [tag("h3", "Size"), boxed(["", "on disk", "of float", ""], rows)]


def _weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def bench_section(bench: Bench | None, folder: Path, in_integers: bool) -> list[Markup]:
    """Times of every runtime that was measured; the command where none was."""
    if bench is None:
        if not in_integers:
            return []
        return [tag("h3", "Latency"), command(f"hccs bench {folder}", "Not measured yet:")]
    cases = list(dict.fromkeys((row.workload, row.threads) for row in bench.rows))
    content = [tag("h3", "Latency"), paragraph(_machine(bench.machine))]
    for workload, threads in cases:
        chosen = [row for row in bench.rows if (row.workload, row.threads) == (workload, threads)]
        longest = max(row.ms for row in chosen)
        content.append(tag("h3", f"{workload}, {threads} thread{'s' * (threads > 1)}"))
        content.append(
            boxed(
                ["", "ms", "times ours", "sentences/s", ""],
                [
                    [
                        tag("strong", row.name) if row.name == OURS else row.name,
                        f"{row.ms:.3f}",
                        f"{row.times_ours:.2f}",
                        f"{row.sentences_per_second:,.0f}",
                        bar(row.ms, longest, ours=row.name == OURS, described=f"{row.ms:.3f} ms"),
                    ]
                    for row in sorted(chosen, key=lambda row: row.ms)
                ],
            )
        )
    content.append(tag("h3", "Files and memory"))
    content.append(
        boxed(
            ["", "MiB on disk", "MiB resident", "s to first answer", "% answers as float"],
            [
                [
                    name,
                    f"{one.bytes / 2**20:.2f}",
                    f"{one.memory / 2**20:.0f}",
                    f"{one.first_answer:.2f}",
                    f"{100 * one.agreement:.1f}",
                ]
                for name, one in bench.contenders.items()
            ],
        )
    )
    if bench.missing:
        names = ", ".join(f"{name} (pip install {' '.join(needs)})" for name, needs in bench.missing.items())
        content.append(tag("p", f"Not installed here: {names}.", class_="quiet"))
    return content


def _machine(machine: Machine) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return f"{machine.system}, {machine.cores} cores, kernels {machine.isa}; {packages}."


def speed_against_float(bench: Bench | None) -> float | None:
    """How many times as fast as float PyTorch one sentence is on one thread, if that was measured.

    There is no such number where the turns of the measurement disagree.
    """
    rows = [] if bench is None else [row for row in bench.rows if row.threads == 1 and row.name == FLOAT]
    return rows[0].times_ours if rows and rows[0].steady else None
