"""Aggregate throughput against the number of tiles, with and without the limit of the core's stream."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hccs import _figures
from hccs.errors import ParameterError
from hccs.numbers.modes import Mode
from hccs_aie.arguments import whole
from hccs_aie.cycles.machine import Generation
from hccs_aie.emulator import Kernel
from hccs_aie.throughput import CLOCK_HZ, modelled, paper_cycles

TILES = {Generation.AIE2: (304,), Generation.AIE2PS: (144, 184)}
"""Compute tiles: 38 x 8 on VEK280; 144 in aie4ml's table of VEK385, 184 in the paper."""

STREAM_BYTES = {Generation.AIE2: 4, Generation.AIE2PS: 8}
"""Bytes per cycle of a core's input stream, and of its output stream."""


@dataclass(frozen=True)
class Scaling:
    """Modelled elements per second of `tiles` tiles: by compute alone, and as the streams feed and drain."""

    generation: Generation
    mode: Mode
    n: int
    tiles: int
    compute: float
    streamed: float

    @property
    def stream_bound(self) -> bool:
        """True when the streams, not the kernel, set the pace."""
        return self.streamed < self.compute


def stream_cycles(generation: Generation | str, mode: Mode | str, n: int) -> float:
    """Least cycles per row that the streams allow: n bytes in, n outputs out, at the same time."""
    return n * max(1, Mode(mode).dtype.itemsize) / STREAM_BYTES[Generation(generation)]


def at(
    generation: Generation | str,
    mode: Mode | str,
    n: int,
    tiles: int,
    kernel: Kernel | str = Kernel.BLOCKED,
) -> Scaling:
    """Modelled throughput of independent tiles, rows dealt out evenly (paper, eq. 12)."""
    generation, mode, tiles = Generation(generation), Mode(mode), whole("tiles", tiles)
    if not 1 <= tiles <= max(TILES[generation]):
        raise ParameterError(
            f"1 to {max(TILES[generation])} tiles on {generation.device}",
            str(tiles),
            "See hccs aie scaling --help.",
        )
    cycles = modelled(generation, kernel, mode, n).per_row
    limited = max(cycles, stream_cycles(generation, mode, n))
    return Scaling(generation, mode, n, tiles, tiles * n * CLOCK_HZ / cycles, tiles * n * CLOCK_HZ / limited)


def curve(
    generation: Generation | str, mode: Mode | str, n: int, kernel: Kernel | str = Kernel.BLOCKED
) -> list[Scaling]:
    """Modelled throughput at powers of two up to the array, and at the array sizes themselves."""
    generation = Generation(generation)
    most = max(TILES[generation])
    counts = sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | set(TILES[generation]))
    return [at(generation, mode, n, tiles, kernel) for tiles in counts]


def figure(generation: Generation | str, n: int, path: str | os.PathLike[str]) -> Path:
    """The paper's scaling figure with our kernels: solid by compute alone, dashed within the streams."""
    generation = Generation(generation)
    drawing = _figures.new(6, 4)
    axis = drawing.subplots()
    for mode, colour in ((Mode.U8_CLB, "#e45756"), (Mode.I16_DIV, "#4c78a8")):
        points = curve(generation, mode, n)
        tiles = [point.tiles for point in points]
        axis.plot(
            tiles,
            [p.compute / 1e9 for p in points],
            color=colour,
            marker="o",
            label=f"{mode.value}, modelled",
        )
        axis.plot(
            tiles, [p.streamed / 1e9 for p in points], color=colour, ls="--", label=f"{mode.value}, streams"
        )
        paper = paper_cycles(generation, mode, n)
        if paper is not None:
            rates = [count * n * CLOCK_HZ / paper / 1e9 for count in tiles]
            axis.plot(
                tiles, rates, color=colour, ls=":", label=f"{mode.value}, the paper's one tile times tiles"
            )
    axis.set(
        xlabel="tiles",
        ylabel="G elements / s",
        title=f"{generation.device}, n = {n}",
        xscale="log",
        yscale="log",
    )
    axis.legend(fontsize=7)
    axis.grid(alpha=0.3)
    return _figures.save(drawing, path)
