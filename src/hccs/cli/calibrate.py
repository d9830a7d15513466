"""`hccs calibrate`: files of logits or saved statistics in, a parameter table out."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import hccs
from hccs._extras import require
from hccs._files.atomic import require_writable
from hccs.calibration import Calibration, HeadStatistics, ScaleCandidates, coarse_scan, search
from hccs.calibration.figure import save_figure
from hccs.calibration.files import collect_files
from hccs.cli.output import Output
from hccs.cli.tables import show
from hccs.errors import FileError, ParameterError
from hccs.numbers.heads import NAMES
from hccs.numbers.modes import Mode

MOST_LINES = 64
FIGURES = (".png", ".pdf", ".svg")


class Granularity(str, Enum):
    """How many heads share a triple."""

    HEAD = "head"
    LAYER = "layer"
    GLOBAL = "global"


class Scores(str, Enum):
    """The width of two lines' scores."""

    INT16 = "int16"
    UINT8 = "uint8"


class SearchKind(str, Enum):
    """The whole region, or the paper's coarse scan."""

    EXACT = "exact"
    GRID = "grid"


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
        str,
        typer.Option(
            help="Logit value of an int8 step: a number, 'max-abs', or 'auto' for the best of some."
        ),
    ] = "auto",
    granularity: Annotated[Granularity, typer.Option(help="Heads that share a triple.")] = Granularity.HEAD,
    mode: Annotated[Mode, typer.Option(help="The deployed mode that the table records.")] = Mode.I16_DIV,
    lines: Annotated[
        int, typer.Option(min=1, max=2, help="1 is the paper's line; 2 come far closer to softmax.")
    ] = 1,
    scores: Annotated[
        Scores, typer.Option(help="For two lines: 'uint8' scores feed int8 products.")
    ] = Scores.INT16,
    kind: Annotated[
        SearchKind, typer.Option("--search", help="'grid' is the paper's scan.")
    ] = SearchKind.EXACT,
    statistics: Annotated[
        Path | None,
        typer.Option(help="Save statistics here after every file; a later run resumes."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Save a picture of every head (.png, .pdf, .svg).")
    ] = None,
) -> None:
    """Find every head's parameters, and its logit scale, from representative logits."""
    for path in (out, *filter(None, (statistics, figure))):
        require_writable(path)
    if figure is not None:
        _require_drawable(figure)
    if kind is SearchKind.GRID and (lines, scores) != (1, Scores.INT16):
        raise ParameterError(
            "one line with --search grid",
            f"--lines {lines} --scores {scores.value}",
            "The coarse scan is the paper's.",
        )
    stats = _statistics(inputs, n, scale, statistics)
    provenance = {"hccs": hccs.__version__, "inputs": [path.name for path in inputs]}
    if kind is SearchKind.GRID:
        found = coarse_scan(stats, n, granularity.value, mode, provenance=provenance)
    else:
        found = search(
            stats, n, granularity.value, mode, lines=lines, scores=scores.value, provenance=provenance
        )
    found.table.save(out)
    if figure is not None:
        save_figure(figure, stats, found)
    _print(found, out)


def _require_drawable(figure: Path) -> None:
    if figure.suffix not in FIGURES:
        raise ParameterError(
            f"--figure to end in {', '.join(FIGURES)}", repr(figure.name), "The ending chooses the format."
        )
    require("matplotlib", "hf", "for --figure")


def _statistics(inputs: list[Path], n: int | None, scale: str, checkpoint: Path | None) -> HeadStatistics:
    saved = [path for path in inputs if _holds_statistics(path)]
    if not saved:
        number = _number(scale)
        return collect_files(inputs, n=n, scale=scale if number is None else number, checkpoint=checkpoint)
    if saved != inputs:
        raise FileError(
            "either files of logits or saved statistics",
            "both: " + ", ".join(path.name for path in inputs),
            "Collect the logits with --statistics first, then merge.",
        )
    stats = HeadStatistics.load(saved[0])
    for path in saved[1:]:
        stats.merge(HeadStatistics.load(path))
    if stats.progress is not None and stats.progress.candidates:
        stats = ScaleCandidates.resume(stats, stats.progress.candidates).best()
    if checkpoint is not None:
        stats.save(checkpoint)
    return stats


def _holds_statistics(path: Path) -> bool:
    return path.suffix == ".safetensors" and path.exists() and b"hccs.HeadStatistics" in _head_of(path)


def _head_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""  # whoever reads the file says why it cannot be read


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
