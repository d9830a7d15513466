"""The cycle model: its bars against the paper, its rules, and every schedule it makes."""

from __future__ import annotations

import dataclasses

import pytest
from aie.tests.verifier import violations

from hccs import HeadParams, Mode
from hccs.errors import DtypeError, ModeError, ParameterError
from hccs_aie import emulator, throughput
from hccs_aie.cycles.machine import Generation, machine
from hccs_aie.cycles.model import (
    Compiler,
    KernelCycles,
    ascii_picture,
    bank_stalls,
    bank_stalls_per_iteration,
    kernel_cycles,
)
from hccs_aie.cycles.program import Loop, fuse_stores, operations, parse, shared
from hccs_aie.emulator import Kernel

CELLS = throughput.entries()
PAPER_CELLS = [cell for cell in CELLS if cell[2] <= 128]


def test_the_paper_kernel_model_meets_the_twelve_cells() -> None:
    errors = [throughput.entry(*cell).model_error for cell in PAPER_CELLS]
    absolute = [abs(error) for error in errors if error is not None]
    assert len(absolute) == 12
    assert sum(absolute) / 12 <= 0.20
    assert max(absolute) <= 0.35


@pytest.mark.parametrize(("n", "bar"), [(32, 0.5), (64, 0.35), (128, 0.35)])
def test_u8_clb_beats_the_paper_kernel(n: int, bar: float) -> None:
    assert throughput.entry(Generation.AIE2, Mode.U8_CLB, n).ratio <= bar


def test_two_lines_cost_half_as_much_again_and_half_of_the_paper_kernel() -> None:
    one, two = (
        throughput.modelled(Generation.AIE2, Kernel.BLOCKED, Mode.U8_CLB, 64, lines=lines) for lines in (1, 2)
    )
    paper = throughput.modelled(Generation.AIE2, Kernel.BY_ROW, Mode.U8_CLB, 64)
    assert two.per_row <= 1.5 * one.per_row
    assert two.per_row < 0.5 * paper.per_row
    assert two.fits_registers


def test_a_line_in_place_of_the_leading_bit_costs_less_than_a_division() -> None:
    for n in (32, 64, 128, 256, 512):
        line, division = (
            throughput.modelled(Generation.AIE2, Kernel.BLOCKED, mode, n).per_row
            for mode in (Mode.U8_LIN, Mode.U8_DIV)
        )
        assert line < 0.8 * division


@pytest.mark.parametrize("n", [32, 64, 128])
def test_i16_div_beats_the_paper_kernel(n: int) -> None:
    assert throughput.entry(Generation.AIE2, Mode.I16_DIV, n).ratio <= 0.35


@pytest.mark.parametrize("mode", [Mode.U8_CLB, Mode.I16_DIV])
def test_close_to_the_bound(mode: Mode) -> None:
    ours = throughput.modelled(Generation.AIE2, Kernel.BLOCKED, mode, 128)
    assert ours.bound <= ours.per_row <= 1.55 * ours.bound


@pytest.mark.parametrize("compiler", list(Compiler))
@pytest.mark.parametrize("generation", list(Generation))
def test_every_schedule_is_sound(generation: Generation, compiler: Compiler) -> None:
    kernels = [
        throughput.modelled(generation, kernel, mode, n, compiler)
        for kernel in Kernel
        for mode in Mode
        for n in (32, 64, 128)
    ]
    kernels += [throughput.modelled_bf16(generation, n, compiler) for n in (32, 128)]
    for kernel in kernels:
        for region in kernel.regions:
            assert violations(region.schedule, machine(generation)) == [], region.name


def test_ours_fits_the_registers_everywhere() -> None:
    for generation in Generation:
        for mode in Mode:
            for n in throughput.COLUMNS:
                assert throughput.modelled(generation, Kernel.BLOCKED, mode, n).fits_registers, (
                    generation,
                    mode,
                    n,
                )


def test_without_pipelining_ours_is_still_under_sixty_percent() -> None:
    for mode in (Mode.U8_CLB, Mode.I16_DIV):
        for n in (32, 64, 128):
            ours = throughput.modelled(Generation.AIE2, Kernel.BLOCKED, mode, n, Compiler.STRAIGHT)
            paper = throughput.modelled(Generation.AIE2, Kernel.BY_ROW, mode, n, Compiler.STRAIGHT)
            assert ours.per_row <= 0.6 * paper.per_row


def fingerprint(kernel: KernelCycles) -> list[object]:
    return [
        (r.name, r.trips, r.times, r.schedule.ii, r.schedule.times, r.schedule.slots) for r in kernel.regions
    ]


def test_deterministic() -> None:
    theta = throughput.representative_theta(64)
    runs = [
        kernel_cycles(
            emulator.trace(Kernel.BLOCKED, Mode.I16_DIV, 64, theta), Generation.AIE2, emulator.MODELLED_ROWS
        )
        for _ in range(2)
    ]
    assert fingerprint(runs[0]) == fingerprint(runs[1])
    # One parsed trace serves all compilers, and none of them changes it for the next.
    asked = (Compiler.OPEN, *Compiler, Compiler.PIPELINED)
    throughput._modelled.cache_clear()
    shared_trace = [throughput.modelled("aie2", Kernel.BLOCKED, Mode.I16_DIV, 64, c) for c in asked]
    assert fingerprint(shared_trace[-1]) == fingerprint(runs[0])


def test_values_do_not_change_the_cycles_but_quotient_bits_do() -> None:
    def cycles(theta: HeadParams, mode: Mode) -> int:
        return kernel_cycles(emulator.trace(Kernel.BLOCKED, mode, 64, theta), Generation.AIE2, 64).cycles

    few, many = HeadParams(511, 0, 1), HeadParams(4, 0, 1)
    assert cycles(few, Mode.U8_CLB) == cycles(many, Mode.U8_CLB)
    assert cycles(few, Mode.I16_DIV) < cycles(many, Mode.I16_DIV)


def test_parse_sees_loops_halves_and_dead_results() -> None:
    items = parse(emulator.trace(Kernel.BLOCKED, Mode.U8_CLB, 64, HeadParams(444, 11, 40)))
    loops = {item.label: item.trips for item in items if isinstance(item, Loop)}
    assert loops == {"clamp_blocks": 4, "sum_blocks": 4, "row_groups": 8}
    eight_rows = next(i for i in items if isinstance(i, Loop) and i.label == "row_groups").iterations[1]
    body = shared(operations(eight_rows))
    # Two 32-lane pieces of each of eight rows: sixteen unpacks, never merged into eight.
    assert sum(operation.name == "unpack" for operation in body) == 16
    fused = [item for item in operations(fuse_stores(eight_rows)) if item.name == "store_srs"]
    assert len(fused) == 16


def test_shared_merges_equal_loads_until_a_store_touches_them() -> None:
    items = operations(
        parse(emulator.trace(Kernel.BY_ROW, Mode.U8_CLB, 32, HeadParams(444, 11, 40), rows=16))
    )
    load = next(item for item in items if item.name == "load")
    again = dataclasses.replace(load, result=10_001)
    store = dataclasses.replace(load, name="store", result=10_002)
    assert len(shared([load, again])) == 1
    assert len(shared([load, store, again])) == 3


def test_names_serve_as_well_as_members() -> None:
    assert throughput.paper_cycles("aie2", "u8_clb", 32) == throughput.paper_cycles(
        Generation.AIE2, Mode.U8_CLB, 32
    )
    for generation in Generation:
        named = throughput.modelled_bf16(generation.value, 32)
        assert named.cycles == throughput.modelled_bf16(generation, 32).cycles
    assert throughput.scaled("aie2ps", "i16_div", 32, 4) == throughput.scaled(
        Generation.AIE2PS, Mode.I16_DIV, 32, 4
    )
    for call in (
        lambda: throughput.modelled("aie3", Kernel.BLOCKED, Mode.U8_CLB, 32),
        lambda: throughput.modelled("aie2", "column", Mode.U8_CLB, 32),
        lambda: throughput.modelled("aie2", "blocked", "u8_clb", 32, "gcc"),
        lambda: throughput.scaled("aie2", "u8_clb", 32, 0),
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(ModeError):
        throughput.paper_cycles("aie2", "softmax", 32)
    with pytest.raises(DtypeError):
        throughput.scaled("aie2", "u8_clb", 32, 1.5)


def test_bank_conflicts_only_add() -> None:
    for n in (32, 128):
        assert bank_stalls(throughput.modelled(Generation.AIE2, Kernel.BLOCKED, Mode.U8_CLB, n)) >= 0
    row = throughput.modelled(Generation.AIE2, Kernel.BY_ROW, Mode.U8_CLB, 32)
    region = max(row.regions, key=lambda r: r.cycles)
    assert bank_stalls_per_iteration(region) <= len(region.schedule.graph.nodes)


def test_pictures() -> None:
    kernel = throughput.modelled(Generation.AIE2, Kernel.BLOCKED, Mode.U8_CLB, 32)
    region = kernel.regions[-1]
    text = ascii_picture(region)
    assert len(text.splitlines()) == 2 + (region.schedule.ii or region.schedule.length)
    assert "VST.SRS" in text
    assert "modelled" in text


def test_scaling_is_linear_until_the_streams() -> None:
    one = throughput.scaled(Generation.AIE2, Mode.U8_CLB, 64, 1)
    full = throughput.scaled(Generation.AIE2, Mode.U8_CLB, 64, 304)
    assert full.compute == pytest.approx(304 * one.compute)
    # 4 bytes per cycle: 16 cycles for a row of 64 in, more than the kernel takes.
    assert one.streamed == pytest.approx(4 * 1.25e9)
    assert one.stream_bound
    assert [point.tiles for point in throughput.scaling_curve(Generation.AIE2PS, Mode.I16_DIV, 128)][-2:] == [
        144,
        184,
    ]
    with pytest.raises(ParameterError, match="1 to 304"):
        throughput.scaled(Generation.AIE2, Mode.U8_CLB, 64, 305)


def test_the_papers_rates_are_its_cycles() -> None:
    assert throughput.paper_cycles(Generation.AIE2, Mode.U8_CLB, 32) == pytest.approx(29.4, abs=0.05)
    assert throughput.paper_cycles(Generation.AIE2PS, "bf16", 128) == pytest.approx(208, abs=0.5)
    assert throughput.paper_cycles(Generation.AIE2, Mode.U8_CLB, 256) is None


def test_every_table_row_names_its_source() -> None:
    for generation in Generation:
        chip = machine(generation)
        assert all(instruction.source for instruction in chip.instructions.values())
        assert all(lowering.source for lowering in chip.lowerings.values())
        used = " ".join(lowering.recipe for lowering in chip.lowerings.values())
        for name in used.replace("(", " ").replace(")", " ").replace("0:", " ").split():
            if name not in {"tree", "fold", "call", "many"} and not name.isdigit():
                assert name in chip.instructions, name
