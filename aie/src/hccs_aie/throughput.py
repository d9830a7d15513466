"""The paper's throughput table with modelled cycles beside it: its kernel, ours, and the BF16 baselines."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from hccs.errors import ParameterError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs_aie import emulator
from hccs_aie.arguments import integer
from hccs_aie.cycles.machine import Generation, table_rows
from hccs_aie.cycles.model import Compiler, KernelCycles, kernel_cycles, program_cycles
from hccs_aie.cycles.program import Item, parse
from hccs_aie.emulator import Kernel

CLOCK_HZ = 1.25e9
"""The clock at which the paper's elements per second become cycles per row."""

COLUMNS = (32, 64, 128, 256, 512)

PAPER_RATES = {
    Generation.AIE2: {
        "bf16": {32: 0.09e9, 64: 0.16e9, 128: 0.25e9},
        Mode.I16_DIV: {32: 0.41e9, 64: 0.78e9, 128: 1.37e9},
        Mode.U8_CLB: {32: 1.36e9, 64: 2.19e9, 128: 2.18e9},
    },
    Generation.AIE2PS: {
        "bf16": {32: 0.24e9, 64: 0.46e9, 128: 0.77e9},
        Mode.I16_DIV: {32: 0.41e9, 64: 0.78e9, 128: 1.41e9},
        Mode.U8_CLB: {32: 1.46e9, 64: 2.46e9, 128: 2.21e9},
    },
}
"""Elements per second of one tile as the paper reports them (its throughput table)."""

AMD_BF16_CYCLES_1024 = {"first": 5657, "optimised": 1845}
"""AMD's own AIE-ML softmax with max-subtraction at n = 1024 (mlir-aie), before and after optimisation."""


@functools.cache
def compiled(kernel: str, mode: Mode | str, n: int) -> dict[str, float]:
    """Bundles per row counted in the open AIE2 compiler's output, by loop, "outside" of loops, and in "all".

    `kernel` is "blocked", ours on 64 rows, or "authors", the paper authors' own row kernel.
    """
    asked = (kernel, Mode(mode).value, str(n))
    rows = [row for row in table_rows("aie2_compiled.csv") if (row["kernel"], row["mode"], row["n"]) == asked]
    return {
        row["part"]: float(row["per_row"] or int(row["bundles"]) * int(row["trips"]) / emulator.MODELLED_ROWS)
        for row in rows
    }


TILES = {Generation.AIE2: (304,), Generation.AIE2PS: (144, 184)}
"""Compute tiles: 38 x 8 on VEK280; 144 in aie4ml's table of VEK385, 184 in the paper."""

STREAM_BYTES = {Generation.AIE2: 4, Generation.AIE2PS: 8}
"""Bytes per cycle of a core's input stream, and of its output stream."""


@dataclass(frozen=True)
class Entry:
    """The cycles per row of one mode at one row length on one device; all but the paper's are modelled."""

    generation: Generation
    mode: Mode
    n: int
    paper: float | None
    paper_kernel: KernelCycles
    ours: KernelCycles
    bf16: float
    paper_bf16: float | None

    @property
    def model_error(self) -> float | None:
        """Relative error of the modelled paper kernel against the paper's figure."""
        return None if self.paper is None else self.paper_kernel.per_row / self.paper - 1.0

    @property
    def ratio(self) -> float:
        return self.ours.per_row / self.paper_kernel.per_row


def elements_per_second(n: int, cycles_per_row: float) -> float:
    return n * CLOCK_HZ / cycles_per_row


def representative_theta(n: int) -> HeadParams:
    """The parameters of the modelled runs: D = 40, the steepest S and the least B that rows of n admit.

    Cycles depend on them only through the quotient bits of the division, which are most at the least B.
    """
    region = Region(n)
    slope = region.max_slope(40)
    return HeadParams(region.min_base(slope, 40), slope, 40)


def representative_two_lines(n: int) -> HeadParams:
    """Two lines for the modelled runs; cycles do not depend on their numbers."""
    return HeadParams(Region(n).max_base, S=0, D=60, S2=1, D2=20)


def modelled(
    generation: Generation | str,
    kernel: Kernel | str,
    mode: Mode | str,
    n: int,
    compiler: Compiler | str = Compiler.PIPELINED,
    lines: int = 1,
    long_bodies: bool | None = None,
) -> KernelCycles:
    """Modelled cycles of an integer kernel on 64 rows; `lines` is 1 or 2.

    Iterations are long where the compiler does not pipeline them, unless `long_bodies` says otherwise: the
    kernels that were compiled had short ones.
    """
    compiler = Compiler(compiler)
    chosen = compiler is Compiler.OPEN if long_bodies is None else long_bodies
    return _modelled(Generation(generation), Kernel(kernel), Mode(mode), n, compiler, lines, chosen)


@functools.cache
def _modelled(
    generation: Generation, kernel: Kernel, mode: Mode, n: int, compiler: Compiler, lines: int, long: bool
) -> KernelCycles:
    rows = emulator.MODELLED_ROWS
    return program_cycles(traced(kernel, mode, n, lines, rows, long), generation, rows, compiler)


@functools.lru_cache(maxsize=64)
def traced(
    kernel: Kernel,
    mode: Mode,
    n: int,
    lines: int = 1,
    rows: int = emulator.MODELLED_ROWS,
    long_bodies: bool = False,
) -> list[Item]:
    """The parsed trace of an integer kernel: the same for every generation."""
    theta = representative_two_lines(n) if lines == 2 else representative_theta(n)
    return parse(emulator.trace(kernel, mode, n, theta, rows, long_bodies))


def modelled_bf16(
    generation: Generation | str, n: int, compiler: Compiler | str = Compiler.PIPELINED
) -> KernelCycles:
    """Modelled cycles of the BF16 baseline: table exponential on AIE-ML, native exponential on AIE-MLv2."""
    return _modelled_bf16(Generation(generation), n, Compiler(compiler))


@functools.cache
def _modelled_bf16(generation: Generation, n: int, compiler: Compiler) -> KernelCycles:
    rows = 8
    return kernel_cycles(
        emulator.trace_bf16(generation is Generation.AIE2PS, n, rows), generation, rows, compiler
    )


def paper_cycles(generation: Generation | str, column: Mode | str, n: int) -> float | None:
    """The paper's rate of a mode, or of "bf16", as cycles per row at 1.25 GHz; None where it reports none."""
    column = column if column == "bf16" else Mode(column)
    rate = PAPER_RATES[Generation(generation)].get(column, {}).get(n)
    return None if rate is None else n * CLOCK_HZ / rate


def entry(generation: Generation | str, mode: Mode | str, n: int) -> Entry:
    generation, mode = Generation(generation), Mode(mode)
    return Entry(
        generation=generation,
        mode=mode,
        n=n,
        paper=paper_cycles(generation, mode, n),
        paper_kernel=modelled(generation, Kernel.BY_ROW, mode, n),
        ours=modelled(generation, Kernel.BLOCKED, mode, n),
        bf16=modelled_bf16(generation, n).per_row,
        paper_bf16=paper_cycles(generation, "bf16", n),
    )


def entries() -> list[tuple[Generation, Mode, int]]:
    """Every entry's device, mode and row length: the paper's two modes, n = 32 to 512."""
    return list(itertools.product(Generation, (Mode.I16_DIV, Mode.U8_CLB), COLUMNS))


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
        return self.streamed < self.compute


def stream_cycles(generation: Generation | str, mode: Mode | str, n: int) -> float:
    """Least cycles per row that the streams allow: n bytes in, n outputs out, at the same time."""
    return n * max(1, Mode(mode).dtype.itemsize) / STREAM_BYTES[Generation(generation)]


def scaled(generation: Generation | str, mode: Mode | str, n: int, tiles: int) -> Scaling:
    """Modelled throughput of independent tiles, rows dealt out evenly (paper, eq. 12)."""
    generation, mode, tiles = Generation(generation), Mode(mode), integer("tiles", tiles)
    if not 1 <= tiles <= max(TILES[generation]):
        raise ParameterError(
            f"1 to {max(TILES[generation])} tiles on {generation.device}",
            str(tiles),
            "See hccs aie scaling --help.",
        )
    cycles = modelled(generation, Kernel.BLOCKED, mode, n).per_row
    limited = max(cycles, stream_cycles(generation, mode, n))
    return Scaling(generation, mode, n, tiles, tiles * n * CLOCK_HZ / cycles, tiles * n * CLOCK_HZ / limited)


def scaling_curve(generation: Generation | str, mode: Mode | str, n: int) -> list[Scaling]:
    """Modelled throughput at powers of two up to the array, and at the array sizes themselves."""
    generation = Generation(generation)
    most = max(TILES[generation])
    counts = sorted({1 << k for k in range(most.bit_length()) if 1 << k <= most} | set(TILES[generation]))
    return [scaled(generation, mode, n, tiles) for tiles in counts]
