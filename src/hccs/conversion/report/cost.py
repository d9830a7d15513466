"""Latency and size of a run against its float model: what `hccs bench` has measured, and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hccs._html.charts import bar
from hccs._html.elements import Markup, tag
from hccs.conversion.report.page import boxed, command, said

OURS, FLOAT = "hccs, all in integers", "torch float32"
"""Names of contenders in `bench.json`."""


def size_section(stages: Mapping[str, Any], folder: Path) -> list[Markup]:
    """Bytes of the float model and of what is delivered."""
    whole = stages.get("whole", {})
    sizes = {"float32 weights": whole.get("float32_bytes") or _weights(folder / "float")}
    if "bytes" in whole:
        sizes["all in integers, model.hccs"] = whole["bytes"]
    else:
        sizes["with HCCS, model/"] = _weights(folder / "model")
    longest = max(sizes.values(), default=0) or 1
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


def bench_section(bench: Mapping[str, Any] | None, folder: Path, whole: bool) -> list[Markup]:
    """Times of every runtime that was measured; the command where none was."""
    if bench is None:
        if not whole:
            return []
        return [tag("h3", "Latency"), command(f"hccs bench {folder}", "Not measured yet:")]
    rows = bench["rows"]
    cases = list(dict.fromkeys((row["workload"], row["threads"]) for row in rows))
    content = [tag("h3", "Latency"), said(_machine(bench["machine"]))]
    for workload, threads in cases:
        chosen = [r for r in rows if (r["workload"], r["threads"]) == (workload, threads)]
        longest = max(r["ms"] for r in chosen)
        content.append(tag("h3", f"{workload}, {threads} thread{'s' * (threads > 1)}"))
        content.append(
            boxed(
                ["", "ms", "times ours", "sentences/s", ""],
                [
                    [
                        tag("strong", r["name"]) if r["name"] == OURS else r["name"],
                        f"{r['ms']:.3f}",
                        f"{r['times_ours']:.2f}",
                        f"{r['sentences_per_second']:,.0f}",
                        bar(r["ms"], longest, ours=r["name"] == OURS, described=f"{r['ms']:.3f} ms"),
                    ]
                    for r in sorted(chosen, key=lambda r: r["ms"])
                ],
            )
        )
    facts = bench["contenders"]
    content.append(tag("h3", "To ship and to hold"))
    content.append(
        boxed(
            ["", "MiB on disk", "MiB resident", "s to first answer", "% answers as float"],
            [
                [
                    name,
                    f"{f['bytes'] / 2**20:.2f}",
                    f"{f['memory'] / 2**20:.0f}",
                    f"{f['first_answer']:.2f}",
                    f"{100 * f['agreement']:.1f}",
                ]
                for name, f in facts.items()
            ],
        )
    )
    missing = bench.get("missing", {})
    if missing:
        names = ", ".join(f"{name} (pip install {' '.join(needs)})" for name, needs in missing.items())
        content.append(tag("p", f"Not installed here: {names}.", class_="quiet"))
    return content


def _machine(machine: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"{machine['system']}, {machine['cores']} cores, kernels {machine['isa']}; {packages}."


def speed_against_float(bench: Mapping[str, Any] | None) -> float | None:
    """How many times as fast as float PyTorch one sentence is on one thread, if that was measured.

    There is no such number where the turns of the measurement disagree.
    """
    rows = [] if bench is None else [r for r in bench["rows"] if r["threads"] == 1]
    theirs = [r for r in rows if r["name"] == FLOAT]
    return float(theirs[0]["times_ours"]) if theirs and theirs[0].get("steady", True) else None
