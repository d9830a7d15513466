"""`hccs aie`: the AI Engine kernels on this machine.

Cycles shown here are modelled, unless they name another source.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from hccs._files.atomic import replace
from hccs.errors import DataError, FileError, ParameterError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.table import run_table
from hccs.reference.attention import attention as reference_attention
from hccs.reference.softmax import softmax as reference_softmax
from hccs_aie import attention as tile_attention
from hccs_aie import emulator, throughput, toolchain
from hccs_aie.cycles.machine import Generation
from hccs_aie.cycles.model import Compiler, ascii_picture, bank_stalls
from hccs_aie.emulator import Kernel
from hccs_aie.export import AttentionProject, Project, Target, plan
from hccs_aie.export import export as write_project

ISA = Annotated[Generation, typer.Option("--isa", help="device generation")]

app = typer.Typer(help="AI Engine kernels: run, count modelled cycles, export, build.", no_args_is_help=True)


@app.command()
def run(
    logits: Annotated[Path, typer.Argument(help="int8 .npy, [..., rows, columns]")],
    base: Annotated[int, typer.Option("--B", help="score of the row's maximum")],
    slope: Annotated[int, typer.Option("--S", help="score lost per step of distance")],
    clamp: Annotated[int, typer.Option("--D", help="largest distance")],
    slope2: Annotated[int | None, typer.Option("--S2", help="of a second line")] = None,
    clamp2: Annotated[int | None, typer.Option("--D2", help="its largest distance")] = None,
    mode: Annotated[Mode, typer.Option(help="normalisation")] = Mode.U8_CLB,
    lengths: Annotated[Path | None, typer.Option(help="int .npy, valid columns per row")] = None,
    kernel: Annotated[Kernel, typer.Option(help="ours, or the paper's row-at-a-time one")] = Kernel.BLOCKED,
    out: Annotated[Path | None, typer.Option(help="where to write the result as .npy")] = None,
) -> None:
    """Run a kernel on a file of rows, by emulation, and compare every bit with the reference."""
    x = _load(logits)
    sizes = None if lengths is None else _load(lengths)
    if (slope2 is None) != (clamp2 is None):
        raise ParameterError(
            "--S2 and --D2 together", "one of them", "A second line has a slope and a clamp."
        )
    theta = HeadParams(base, slope, clamp)
    if slope2 is not None and clamp2 is not None:
        theta = HeadParams(base, slope, clamp, slope2, clamp2, wide=True)
    result = emulator.softmax(x, theta, mode, sizes, kernel)
    rows = x.reshape(-1, x.shape[-1])
    valid = None if sizes is None else np.broadcast_to(sizes, x.shape[:-1]).reshape(-1)
    expected = np.empty((len(rows), x.shape[-1]), mode.dtype)
    steps = range(0, len(rows), 256)
    for start in track(steps, "reference", disable=len(steps) < 8):
        part = slice(start, start + 256)
        expected[part] = reference_softmax(rows[part], theta, mode, None if valid is None else valid[part])
    different = int((result.reshape(expected.shape) != expected).sum())
    if different:
        raise DataError("equal bits", f"{different} outputs differ from the reference", "Please report this.")
    if out is not None:
        _save(out, result)
    Console().print(
        f"{len(rows)} rows of {x.shape[-1]}, {mode.value}, {kernel.value}: every bit equals the reference"
    )


def _load(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except Exception as error:
        # On damaged bytes numpy, ast and tokenize each raise errors of their own.
        raise FileError(f"{path} to be a .npy file", str(error), "Write one with numpy.save.") from error


def _save(path: Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    try:
        replace(path, buffer.getvalue())
    except OSError as error:
        raise FileError(f"{path} to be writable", str(error), "Choose another --out.") from error


@app.command()
def cycles(
    schedule: Annotated[bool, typer.Option(help="one kernel's schedules instead of the tables")] = False,
    generation: ISA = Generation.AIE2,
    mode: Annotated[Mode, typer.Option(help="for --schedule")] = Mode.U8_CLB,
    n: Annotated[int, typer.Option(help="for --schedule")] = 64,
    kernel: Annotated[Kernel, typer.Option(help="for --schedule")] = Kernel.BLOCKED,
    compiler: Annotated[Compiler, typer.Option(help="for --schedule")] = Compiler.PIPELINED,
) -> None:
    """The paper's throughput table with modelled cycles: its kernel, ours, and the BF16 baseline."""
    console = Console()
    if schedule:
        emulator.require_columns(n)
        found = throughput.modelled(generation, kernel, mode, n, compiler)
        for region in found.regions:
            console.print(ascii_picture(region), highlight=False, soft_wrap=True)
        issues = ", ".join(
            f"{slot} {count:.2f} ({count / found.per_row:.0%} full)" for slot, count in found.issues.items()
        )
        console.print(
            f"{found.per_row:.1f} modelled cycles per row, bound {found.bound:.1f}; "
            f"{found.binding_slot} binds; issues per row: {issues}; "
            f"bank conflicts would add {bank_stalls(found) / found.rows:.1f}"
        )
        return
    entries = [
        throughput.entry(chip, norm, columns)
        for chip, norm, columns in track(throughput.entries(), "modelling", transient=True, console=console)
    ]
    # Fourteen columns do not fit the usual terminal; wrapping lines still reads better than cut figures.
    console.width = max(console.width, 150)
    for chip in Generation:
        console.print(_throughput_table(chip, [entry for entry in entries if entry.generation is chip]))
    console.print(_open_table())
    console.print(_modes_table())
    console.print(_bf16_table())
    errors = [abs(entry.model_error) for entry in entries if entry.model_error is not None]
    console.print(
        f"model against the paper's {len(errors)} HCCS cells: mean absolute error "
        f"{sum(errors) / len(errors):.1%}, worst {max(errors):.1%}. "
        "Only the paper column was measured, by the paper's authors; at 1.25 GHz."
    )


def _throughput_table(generation: Generation, entries: list[throughput.Entry]) -> Table:
    table = _table(
        f"{generation.device}: cycles per row and elements/s, modelled unless marked measured",
        "mode", "n", "paper, measured", "measured G/s", "paper's kernel", "error", "ours", "ours, G/s",
        "ours / paper's", "BF16", "faster than BF16", "than paper's BF16", "ours / bound", "binds",
    )  # fmt: skip
    for entry in entries:
        ours = entry.ours.per_row
        table.add_row(
            entry.mode.value,
            str(entry.n),
            _figure(entry.paper),
            "-" if entry.paper is None else _billions(entry.n, entry.paper),
            f"{entry.paper_kernel.per_row:.1f}",
            "-" if entry.model_error is None else f"{100 * entry.model_error:+.0f} %",
            f"{ours:.1f}",
            _billions(entry.n, ours),
            f"{entry.ratio:.2f}x",
            f"{entry.bf16:.0f}",
            f"{entry.bf16 / ours:.1f}x",
            "-" if entry.paper_bf16 is None else f"{entry.paper_bf16 / ours:.1f}x",
            f"{ours / entry.ours.bound:.2f}x",
            entry.ours.binding_slot,
        )
    return table


def _billions(n: int, cycles: float) -> str:
    return f"{throughput.elements_per_second(n, cycles) / 1e9:.2f}"


def _open_table() -> Table:
    table = _table(
        "AIE-ML by the open AIE2 compiler: bundles per row, modelled unless marked compiled",
        "mode", "n", "authors' row kernel, compiled", "row kernel", "ours, compiled", "the same",
        "clamp / sums / normalise, compiled", "the same", "ours / authors', compiled", "ours now",
    )  # fmt: skip
    for mode in Mode:
        for n in (32, 64, 128):
            counted = throughput.compiled("blocked", mode, n)
            if not counted and mode is not Mode.I16_DIV:
                continue
            row, ours, now = (
                throughput.modelled(Generation.AIE2, kernel, mode, n, Compiler.OPEN, long_bodies=long)
                for kernel, long in ((Kernel.BY_ROW, False), (Kernel.BLOCKED, False), (Kernel.BLOCKED, True))
            )
            authors, all_ours = throughput.compiled("authors", mode, n).get("all"), counted.get("all")
            loops = ("clamp_blocks", "sum_blocks", "row_groups")
            table.add_row(
                mode.value,
                str(n),
                _figure(authors, 0),
                f"{row.per_row:.1f}",
                _figure(all_ours),
                f"{ours.per_row:.1f}",
                " / ".join(_figure(counted.get(name)) for name in loops),
                " / ".join(_figure(ours.loop(name)) for name in loops),
                f"{all_ours / authors:.2f}x" if all_ours and authors else "-",
                f"{now.per_row:.1f}",
            )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _modes_table() -> Table:
    table = _table(
        "AIE-ML, our kernel in every mode, one line and two: cycles per row, modelled",
        "mode", "n", "one line", "two lines", "two / one", "two / paper's kernel in u8_clb",
    )  # fmt: skip
    for mode in Mode:
        for n in (32, 64, 128):
            one, two = (
                throughput.modelled(Generation.AIE2, Kernel.BLOCKED, mode, n, lines=lines).per_row
                for lines in (1, 2)
            )
            paper = throughput.modelled(Generation.AIE2, Kernel.BY_ROW, Mode.U8_CLB, n).per_row
            table.add_row(
                mode.value, str(n), f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}x", f"{two / paper:.2f}x"
            )
    return table


def _bf16_table() -> Table:
    table = _table(
        "BF16 softmax with max-subtraction: cycles per row",
        "device", "n", "measured", "modelled, pipelined", "modelled, serial loops",
    )  # fmt: skip
    for generation in Generation:
        for n in (32, 64, 128):
            table.add_row(
                generation.device,
                str(n),
                f"{throughput.paper_cycles(generation, 'bf16', n):.0f} (paper)",
                *_bf16(generation, n),
            )
    first, best = throughput.AMD_BF16_CYCLES_1024.values()
    table.add_row(
        Generation.AIE2.device, "1024", f"{first}, later {best} (AMD)", *_bf16(Generation.AIE2, 1024)
    )
    return table


def _bf16(generation: Generation, n: int) -> tuple[str, str]:
    return (
        f"{throughput.modelled_bf16(generation, n).per_row:.0f}",
        f"{throughput.modelled_bf16(generation, n, Compiler.SERIAL).per_row:.0f}",
    )


@app.command()
def attention(
    generation: ISA = Generation.AIE2,
    compiler: Annotated[Compiler, typer.Option(help="which modelled compiler")] = Compiler.PIPELINED,
    seed: Annotated[int, typer.Option(min=0, help="of the random heads")] = 0,
) -> None:
    """q.k, HCCS and p.v in one kernel against three: modelled cycles, and every bit of random heads."""
    console = Console()
    rng = np.random.default_rng(seed)
    table = _table(
        f"{generation.device}: attention of one head on one tile, cycles per row, modelled",
        "n", "d", "B", "one kernel", "q.k", "softmax", "p.v", "three", "one / three", "of peak",
    )  # fmt: skip
    for n, base in ((64, 444), (64, 255), (128, 255)):
        for dim in tile_attention.HEAD_SIZES:
            _require_equal_attention(rng, n, dim, base)
            found = tile_attention.modelled(generation, n, dim, compiler, base)
            table.add_row(
                *(str(number) for number in (n, dim, base)),
                *(f"{k.per_row:.1f}" for k in (found.fused, found.logits, found.softmax, found.values)),
                f"{found.separate:.1f}",
                f"{found.fused.per_row / found.separate:.2f}x",
                f"{found.share_of_peak:.0%}",
            )
    console.print(table)
    console.print(
        "random heads: every bit equals the reference, one kernel (deferred normalisation) and three (u8_clb)"
    )


def _require_equal_attention(rng: np.random.Generator, n: int, dim: int, base: int) -> None:
    q, k, v = (rng.integers(-128, 128, (64 if i == 0 else n, dim)).astype(np.int8) for i in range(3))
    theta, requant = HeadParams(base, base // 40, 40), Requant(FixedPoint(1, 10))
    N, Z = tile_attention.attention(q, k, v, theta, requant)
    expected_N, expected_Z = reference_attention(q, k, v, theta, requant, out="pair")
    three = tile_attention.by_three_kernels(q, k, v, theta, requant)
    expected_three, _ = reference_attention(q, k, v, theta, requant, mode=Mode.U8_CLB, out="pair")
    pairs = ((N, expected_N), (Z, expected_Z), (three, expected_three))
    different = sum(int((got != expected).sum()) for got, expected in pairs)
    if different:
        raise DataError(
            "equal bits", f"{different} integers differ from the reference", "Please report this."
        )


@app.command()
def layer(
    model: Annotated[Path, typer.Argument(help="an integer model, model.hccs")],
    number: Annotated[int, typer.Option("--layer", help="which layer")] = 0,
    n: Annotated[int, typer.Option(help="rows of a sequence, in 32s")] = 64,
    generation: ISA = Generation.AIE2,
    compiler: Annotated[Compiler, typer.Option(help="which modelled compiler")] = Compiler.PIPELINED,
    svg: Annotated[Path | None, typer.Option(help="draw the tiles and streams here")] = None,
) -> None:
    """A whole encoder layer on tiles: every bit against the reference, modelled cycles, what bounds it."""
    from hccs.program import IntegerModel
    from hccs_aie.layer import EncoderLayer, mapped, require_equal_bits
    from hccs_aie.layer_picture import svg_picture

    console = Console()
    program = IntegerModel.load(model).program
    of = EncoderLayer.of(program, number)
    with console.status("running the tiles by emulation"):
        sequences = require_equal_bits(program, number)
    console.print(f"{sequences} sequences: every bit equals the reference")
    with console.status("modelling"):
        found = mapped(of, n, generation, compiler)
    table = _table(
        f"{generation.device}, layer {number}, {n} rows: cycles of a sequence, modelled",
        "tiles", "stage", "compute", "streams", "of peak", "memory, KiB", "bound by", "registers",
    )  # fmt: skip
    for stage in dict.fromkeys(tile.stage for tile in found.tiles):
        tiles = [tile for tile in found.tiles if tile.stage == stage]
        worst = max(tiles, key=lambda tile: tile.cycles)
        peak = worst.products / tile_attention.PRODUCTS_PER_CYCLE[generation] / worst.compute
        table.add_row(
            str(len(tiles)), stage, str(worst.compute), str(worst.streams), f"{peak:.0%}",
            f"{max(tile.memory for tile in tiles) / 1024:.0f}", worst.bound,
            "fit" if worst.kernel.fits_registers else "spill",
        )  # fmt: skip
    console.print(table)
    slowest = found.slowest
    console.print(
        f"{len(found.tiles)} tiles, {found.products} products; {slowest.stage} is the slowest, "
        f"{slowest.cycles} cycles, bound by {slowest.bound}: {found.share_of_array:.1%} of the matrix units' "
        f"peak with all tiles at work, {found.share_of_work:.1%} of their busy cycles"
    )
    if svg is not None:
        drawn = svg_picture(found, svg, f"{model.stem}, layer {number} on {generation.device}")
        console.print(f"wrote {drawn}", markup=False)


@app.command("scaling")
def scaling_command(
    generation: ISA = Generation.AIE2PS,
    n: Annotated[int, typer.Option(help="row length")] = 128,
) -> None:
    """Aggregate throughput against tiles, by compute alone and within the core streams. Modelled."""
    emulator.require_columns(n)
    console = Console()
    table = _table(
        f"{generation.device}, n = {n}: G elements per second, modelled",
        "tiles", "u8_clb", "u8_clb, streams", "i16_div", "i16_div, streams",
    )  # fmt: skip
    curves = [throughput.scaling_curve(generation, mode, n) for mode in (Mode.U8_CLB, Mode.I16_DIV)]
    for points in zip(*curves, strict=True):
        rates = [f"{rate / 1e9:.1f}" for point in points for rate in (point.compute, point.streamed)]
        table.add_row(str(points[0].tiles), *rates)
    console.print(table)
    bound = [point.mode.value for point in (curve[0] for curve in curves) if point.stream_bound]
    console.print(
        f"stream-bound: {', '.join(bound) or 'none'} "
        f"(core stream {throughput.STREAM_BYTES[generation]} B per cycle)"
    )


@app.command()
def export(
    run: Annotated[
        Path,
        typer.Argument(help="a finished run's folder, a parameter table; an integer model for --attention"),
    ],
    target: Annotated[Target, typer.Option(help="tool flow")],
    out: Annotated[Path, typer.Option(help="project folder to write")],
    layer: Annotated[int, typer.Option(help="which layer's heads")] = 0,
    rows: Annotated[int, typer.Option(help="query rows per head, a multiple of 32 (16 beyond n = 128)")] = 64,
    columns: Annotated[int | None, typer.Option(help="key columns; the table's n if not given")] = None,
    tiles: Annotated[
        int | None, typer.Option(help="tiles to split the rows over; the fewest that fit if not given")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="normalisation; the table's if not given")] = None,
    attention: Annotated[bool, typer.Option(help="the layer's whole attention, q, k and v to int8")] = False,
) -> None:
    """Write a project folder: kernel, parameters, graph or design, test vectors, README."""
    project: Project | AttentionProject
    if attention:
        from hccs.program import IntegerModel

        path = run / "model.hccs" if run.is_dir() else run
        project = AttentionProject.of(IntegerModel.load(path).program, layer, columns)
    else:
        project = plan(run_table(run), layer, rows, columns, tiles, mode)
    folder = write_project(project, target, out)
    Console().print(
        f"wrote {folder}: {project.heads} heads x {project.rows} rows x {project.columns} columns, "
        f"{project.description}, on {project.tiles} tiles; see its README.md",
        markup=False,
    )


@app.command()
def layers(
    model: Annotated[Path, typer.Argument(help="an integer model, model.hccs")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    rows: Annotated[int, typer.Option(min=1, help="tokens that a layer takes at once")] = 64,
) -> None:
    """Write a whole model's linear layers for the aie4ml package, and what it lacks for the rest."""
    from hccs.program import IntegerModel
    from hccs_aie.export.aie4ml_layers import export_layers, lowered_and_not

    program = IntegerModel.load(model).program
    folder = export_layers(program, out, rows)
    made, missing = lowered_and_not(program)
    console = Console()
    console.print(
        f"wrote {folder}: {len(made)} linear layers; see its README.md", markup=False, soft_wrap=True
    )
    for why in dict.fromkeys(missing.values()):
        names = ", ".join(name for name, reason in missing.items() if reason == why)
        console.print(f"  not {names}: {why}", markup=False, soft_wrap=True)


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(help="a project folder that export wrote")],
    generation: ISA = Generation.AIE2,
    platform: Annotated[str | None, typer.Option(help="Vitis: the platform's .xpfm")] = None,
) -> None:
    """Compile an exported kernel with Peano or Vitis, whichever is installed, and count its bundles."""
    console = Console()
    with console.status("compiling"):
        made = toolchain.build(folder, generation, platform)
    table = Table(title=f"{made.compiler}: bundles of {made.object_file.name}")
    table.add_column("function")
    table.add_column("bundles", justify="right")
    for name, count in sorted(made.bundles.items(), key=lambda item: -item[1]):
        table.add_row(escape(name), str(count))
    table.add_row("all, by the compiler", str(made.total), style="bold")
    table.add_row("kernel, by the model", str(made.modelled_bundles), style="bold")
    console.print(table)
    console.print(_loop_table(made))


def _loop_table(made: toolchain.Build) -> Table:
    issued = made.issued
    table = Table(title=f"bundles issued for {issued.rows} rows: loops times trips, the rest once")
    for name in ("loop", "bundles", "trips", "per row, compiled", "per row, modelled"):
        table.add_column(name, justify="left" if name == "loop" else "right")
    for loop in issued.loops:
        known = loop.name is not None and loop.iterations is not None
        table.add_row(
            escape(loop.name or f"one of {loop.function}"),
            str(loop.bundles),
            str(loop.iterations) if known else "?",
            f"{loop.bundles * (loop.iterations or 0) / issued.rows:.1f}" if known else "?",
            f"{made.modelled.loop(loop.name):.1f}" if loop.name is not None else "?",
        )
    table.add_row("outside loops", str(issued.outside), "1", f"{issued.outside / issued.rows:.1f}", "")
    compiled = "?" if issued.per_row is None else f"{issued.per_row:.1f}"
    table.add_row("all", "", "", compiled, f"{made.modelled.per_row:.1f}", style="bold")
    return table
