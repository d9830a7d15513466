"""`hccs bench`: a finished run beside other runtimes, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hccs.cli.boundary import require_models
from hccs.cli.output import Json, Output, on_run
from hccs.cli.tables import show

if TYPE_CHECKING:
    from hccs.conversion.report.cost import Bench, Timing


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
    from hccs.conversion.report.cost import SHIPPED, read_bench, shipped, speed_against_float
    from hccs.conversion.report.write import write_report
    from hccs_lab.bench.run import BenchSettings, describe_load
    from hccs_lab.bench.run import bench as time_run

    output = Output(json)
    found = time_run(run, BenchSettings(batch, group, turns, seconds), file, output.say)
    output.results(found)
    measured = read_bench(run)
    assert measured is not None
    show(output.console, "milliseconds (times ours; ? where turns disagree)", *times(measured))
    show(output.console, "to ship and to hold", SHIPPED, shipped(measured))
    speed = speed_against_float(measured)
    lines = []
    if speed is not None:
        lines = [f"one sentence on one thread: {speed:.2f} times as fast as float PyTorch"]
    elif not all(row.steady for row in measured.rows):
        lines = [f"no ratio to float PyTorch: turns disagree; {describe_load(found['machine'])}"]
    lines.append(f"everything in {run / 'bench.json'}")
    lines.append(f"report: {write_report(run)}")
    output.end("bench", lines, on_run(run, "export c", "export onnx"))


def times(found: Bench) -> tuple[list[str], list[list[str]]]:
    """Milliseconds of every contender, with their ratio to ours, by workload and threads."""
    cells = {(row.name, (row.workload, row.threads)): row for row in found.rows}
    cases = list(dict.fromkeys(case for _, case in cells))

    def shown(cell: Timing) -> str:
        return f"{cell.ms:.3f} ({cell.times_ours:.2f}{'' if cell.steady else '?'})"

    rows = [[name, *(shown(cells[name, case]) for case in cases)] for name in found.contenders]
    return ["", *(f"{workload}, {threads}T" for workload, threads in cases)], rows
