"""`hccs bench`: a finished run beside other runtimes, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output, on_run
from hccs.cli.tables import show

if TYPE_CHECKING:
    from collections.abc import Sequence


def bench(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    batch: Annotated[int, typer.Option(help="Sentences in a batch, with the lengths they have.")] = 64,
    group: Annotated[
        int | None,
        typer.Option(help="Sort the batch by length and answer so many at a time; padded as one by default."),
    ] = None,
    file: Annotated[str | None, typer.Option(help="Another TSV file with the task's columns.")] = None,
    turns: Annotated[int, typer.Option(help="Turns of every runtime; times are medians over them.")] = 9,
    seconds: Annotated[float, typer.Option(help="Length of a turn, up to 60.", min=0)] = 0.15,
    json: Json = False,
) -> None:
    """Latency, throughput, size and memory of a run: float, other runtimes' int8, and all in integers."""
    require_models()
    from hccs.conversion.report.cost import read_bench, speed_against_float
    from hccs.conversion.report.write import write_report
    from hccs_lab.bench.run import BenchSettings, describe_load
    from hccs_lab.bench.run import bench as time_run

    output = Output(json)
    found = time_run(run, BenchSettings(batch, group, turns, seconds), file, output.say)
    output.results(found)
    for title, header, rows in grids(found):
        show(output.console, title, header, rows)
    speed = speed_against_float(read_bench(run))
    lines = []
    if speed is not None:
        lines = [f"one sentence on one thread: {speed:.2f} times as fast as float PyTorch"]
    elif not all(row["steady"] for row in found["rows"]):
        lines = [f"no ratio to float PyTorch: turns disagree; {describe_load(found['machine'])}"]
    lines.append(f"everything in {run / 'bench.json'}")
    lines.append(f"report: {write_report(run)}")
    output.end("bench", lines, on_run(run, "export c", "export onnx"))


def grids(found: dict[str, Any]) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Times in milliseconds with their ratio to ours; then what has to be shipped and held."""
    cases = list(dict.fromkeys((row["workload"], row["threads"]) for row in found["rows"]))
    cells = {(row["name"], (row["workload"], row["threads"])): row for row in found["rows"]}
    times: list[Sequence[str]] = [
        [
            name,
            *(
                f"{cell['ms']:.3f} ({cell['times_ours']:.2f}{'' if cell['steady'] else '?'})"
                for cell in (cells[name, case] for case in cases)
            ),
        ]
        for name in found["contenders"]
    ]
    costs: list[Sequence[str]] = [
        [
            name,
            f"{facts['bytes'] / 2**20:.2f}",
            f"{facts['memory'] / 2**20:.0f}",
            f"{facts['first_answer']:.2f}",
            f"{100 * facts['agreement']:.1f}",
        ]
        for name, facts in found["contenders"].items()
    ]
    heads = [f"{workload}, {threads}T" for workload, threads in cases]
    return [
        ("milliseconds (times ours; ? where turns disagree)", ["", *heads], times),
        (
            "to ship and to hold",
            ["", "MiB on disk", "MiB resident", "s to first answer", "% answers as float"],
            costs,
        ),
    ]
