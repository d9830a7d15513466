"""`hccs calibrate`: files of logits or saved statistics in, a parameter table out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import hccs
from hccs._files.atomic import require_writable
from hccs.calibration import Calibration, HeadStatistics, search
from hccs.calibration.files import collect_files
from hccs.cli.output import Output
from hccs.cli.tables import show
from hccs.errors import FileError
from hccs.numbers.heads import NAMES
from hccs.numbers.modes import Mode

MOST_LINES = 64


Granularity = Literal["head", "layer", "global"]
Scores = Literal["int16", "uint8"]


def calibrate(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help=r"Logits \[layers, heads, rows, k] (several files: more rows), one file \[heads, rows, k] "
            "per layer, or saved statistics. .npy, .npz or .safetensors; archives name the array 'logits' "
            "and may hold 'lengths' or 'valid', and 'scale'.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The parameter table to write.")] = Path(
        "table.hccs.safetensors"
    ),
    n: Annotated[
        int | None, typer.Option(help="The longest row to serve; default: the longest seen.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Logit value of an int8 step; default: the files', or the largest magnitude / 127."
        ),
    ] = None,
    granularity: Annotated[Granularity, typer.Option(help="Heads that share a triple.")] = "head",
    mode: Annotated[Mode, typer.Option(help="The deployed mode that the table records.")] = Mode.I16_DIV,
    lines: Annotated[
        int, typer.Option(min=1, max=2, help="1 is the paper's line; 2 come far closer to softmax.")
    ] = 1,
    scores: Annotated[
        Scores, typer.Option(help="For two lines: 'uint8' scores feed int8 products.")
    ] = "int16",
    statistics: Annotated[
        Path | None,
        typer.Option(help="Save the statistics here: those of several runs merge in a later one."),
    ] = None,
) -> None:
    """Find every head's parameters, and its logit scale, from representative logits."""
    for path in (out, *filter(None, (statistics,))):
        require_writable(path)
    stats = _statistics(inputs, n, scale)
    if statistics is not None:
        stats.save(statistics)
    provenance = {"hccs": hccs.__version__, "inputs": [path.name for path in inputs]}
    found = search(stats, n, granularity, mode, lines=lines, scores=scores, provenance=provenance)
    found.table.save(out)
    _print(found, out)


def _statistics(inputs: list[Path], n: int | None, scale: float | None) -> HeadStatistics:
    saved = [path for path in inputs if _holds_statistics(path)]
    if not saved:
        return collect_files(inputs, n=n, scale=scale)
    if saved != inputs:
        raise FileError(
            "either files of logits or saved statistics",
            "both: " + ", ".join(path.name for path in inputs),
            "Collect the logits with --statistics first, then merge.",
        )
    stats = HeadStatistics.load(saved[0])
    for path in saved[1:]:
        stats.merge(HeadStatistics.load(path))
    return stats


def _holds_statistics(path: Path) -> bool:
    if path.suffix != ".safetensors":
        return False
    try:
        with path.open("rb") as file:
            return b"hccs.HeadStatistics" in file.read(4096)
    except OSError:
        return False  # whoever reads the file says why it cannot be read


def _print(found: Calibration, out: Path) -> None:
    output = Output()
    title = f"{len(found.heads)} heads, n = {found.table.n}, mean KL {found.kl:.4f}"
    theta = NAMES[: found.heads[0].params.packed.shape[-1]]
    header = ("head", *theta, "scale", "rows", "entropy", "KL", "renorm.", "deficit", "second")
    rows = [
        (
            f"{r.layer}.{r.head}",
            *map(str, r.params.packed.tolist()),
            f"{r.scale:.4f}",
            str(r.rows),
            *(f"{x:.4f}" for x in (r.entropy, r.kl, r.kl_renormalised, r.mass_deficit, r.runner_up_kl)),
        )
        for r in found.heads[:MOST_LINES]
    ]
    show(output.console, title, header, rows)
    if len(found.heads) > MOST_LINES:
        output.say(f"... and {len(found.heads) - MOST_LINES} more")
    output.say(f"wrote {out}")
