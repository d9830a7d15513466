"""Loops found in disassemblies, and the bundles that a pass issues."""

from __future__ import annotations

import pytest

from hccs_aie import emulator, throughput
from hccs_aie.cycles.program import parse
from hccs_aie.listing import CodeFunction, CodeLoop, LoopBundles, NamedLoop, count, functions, source_loops

BUNDLE = 16


def code(name: str, *texts: str, start: int = 0) -> str:
    """A function of one 16-byte bundle per text; a text may carry a relocation after a bar."""
    lines = [f"{start:08x} <{name}>:"]
    for index, text in enumerate(texts):
        text, _, relocation = text.partition(" | ")
        address = start + BUNDLE * index
        lines.append(f"{address:8x}: c0 03 00 00  \t{text}")
        if relocation:
            lines.append(f"\t\t{address:08x}:  R_AIE_50\t{relocation}")
    return "\n".join(lines) + "\n"


def hardware_loop(before: int, body: int, after: int, counter: str = "#0", start: int = 0) -> list[str]:
    """Bundles of a function with one hardware loop, whose bounds are operands."""
    first = start + BUNDLE * (before + 3)
    last = first + BUNDLE * (body - 1)
    return [
        *["nop"] * before,
        f"movxm ls, #{first}",
        f"movxm le, #{last}; nopa ; nopb",
        f"add.nc lc, r0, {counter}; vbcst.8 x0, r1",
        *["vlda w0, [p0], #32; nopb ; vmax_lt.s8 x1, r16, x2, x3"] * body,
        *["nop"] * after,
    ]


def test_a_hardware_loop_by_its_registers() -> None:
    (function,) = functions(code("f", *hardware_loop(4, 11, 6)))
    assert function.bundles == 4 + 3 + 11 + 6
    (loop,) = function.loops
    assert (loop.bundles, loop.peeled) == (11, 0)


def test_a_hardware_loop_by_relocations() -> None:
    texts = ["movxm ls, #0 | .text+0x30", "movxm le, #0 | .L_LEnd0", "add.nc lc, r2, #-2", *["nop"] * 9]
    text = code("f", *texts) + f"{0x30 + 4 * BUNDLE:08x} <.L_LEnd0>:\n"
    (function,) = functions(text)
    (loop,) = function.loops
    assert (loop.first, loop.bundles, loop.peeled) == (0x30, 5, 2)


@pytest.mark.parametrize(
    "branch", ["jnz r0, #64", "jnz r0, #0x40", "jnzd r1, r1, <f+0x20>", "jnz r3, <.LBB0_1>"]
)
def test_a_branch_back_takes_its_delay_slots_along(branch: str) -> None:
    text = code("f", *["nop"] * 4, *["vadd.8 x0, x1, x2"] * 6, branch, *["nop"] * 8, start=0x20)
    text = "00000040 <.LBB0_1>:\n" + text if "LBB" in branch else text
    (function,) = functions(text)
    (loop,) = function.loops
    first = 0x40
    assert loop.first == first
    assert loop.bundles == (0x20 + BUNDLE * 10 - first) // BUNDLE + 1 + 5


def test_a_branch_forward_is_no_loop() -> None:
    (function,) = functions(code("f", "jz r0, #96", *["nop"] * 9))
    assert function.loops == ()


def test_an_outer_loop_does_not_count_its_inner_one() -> None:
    inner = hardware_loop(2, 7, 0, start=2 * BUNDLE)
    outer = code("f", "nop", "nop", *inner, "nop", f"jnz r9, #{2 * BUNDLE}", *["nop"] * 5, "ret lr")
    (function,) = functions(outer)
    outside, inside = function.loops
    assert outside.encloses(inside)
    assert inside.bundles == 7
    assert outside.bundles == len(inner) - 7 + 1 + 1 + 5


def kernel_loops(mode: str, n: int) -> list[NamedLoop]:
    return source_loops(parse(emulator.trace("blocked", mode, n, throughput.representative_theta(n))))


def test_the_loops_of_the_source() -> None:
    loops = kernel_loops("u8_clb", 64)
    assert [(loop.name, loop.iterations) for loop in loops] == [
        ("clamp_blocks", 4),
        ("sum_blocks", 4),
        ("row_groups", 8),
    ]
    division = {loop.name: loop for loop in kernel_loops("u8_div", 64)}["quotient_bits"]
    assert (division.iterations, division.entered, division.operations) == (4 * 14, 4, 4)
    names = [loop.name for loop in kernel_loops("i16_div", 64)]
    assert names == ["clamp_blocks", "sum_blocks", "batches", "quotient_bits", "row_groups"]


def test_passes_as_functions() -> None:
    text = (
        code("_ZN4hccs12clamp_levelsILj2EEEvPKa", *hardware_loop(20, 90, 5))
        + code("_ZN4hccs10row_totalsILj2EEEvPKa", *hardware_loop(18, 60, 4))
        + code("_ZN4hccs9normaliseILNS_4modeE3EEEvPKa", *hardware_loop(12, 40, 9, "#-1"))
        + code("hccs_tile", *["nop"] * 30)
    )
    found = count(functions(text), kernel_loops("u8_clb", 64), 64)
    assert [(loop.name, loop.bundles, loop.iterations) for loop in found.loops] == [
        ("clamp_blocks", 90, 4),
        ("sum_blocks", 60, 4),
        ("row_groups", 40, 7),
    ]
    assert found.outside == 28 + 25 + 24 + 30
    assert found.per_row == (90 * 4 + 60 * 4 + 40 * 7 + 107) / 64


def test_everything_inlined_goes_by_order() -> None:
    bodies: list[str] = []
    for body in (90, 60, 40):
        bodies += hardware_loop(5, body, 2, start=BUNDLE * len(bodies))
    # A loop over tiles stands around all three.
    text = code("hccs_tile", *bodies, "jnz r0, #0x10", *["nop"] * 6)
    found = count(functions(text), kernel_loops("u8_clb", 64), 64)
    assert [loop.name for loop in found.loops] == ["clamp_blocks", "sum_blocks", "row_groups"]
    assert found.per_row == (90 * 4 + 60 * 4 + 40 * 8 + len(bodies) - 190 + 7) / 64


def test_loops_that_are_not_the_sources_stay_unknown() -> None:
    found = count(functions(code("hccs_tile", *hardware_loop(3, 10, 2))), kernel_loops("u8_clb", 64), 64)
    assert found.loops == (LoopBundles("hccs_tile", 10),)
    assert found.per_row is None
    none = count(functions(code("hccs_tile", *["nop"] * 9)), kernel_loops("u8_clb", 64), 64)
    assert none.missing == ("clamp_blocks", "sum_blocks", "row_groups")
    assert none.per_row is None


def test_a_division_loop_unrolled_in_part_and_its_remainder() -> None:
    """Two copies of the quotient's loop: eight bits a trip, then one; and the loop that counts the bits."""
    names = ["count_bits", "batches", "quotient_bits", "quotient_bits"]
    spans = [range(2, 6), range(8, 60), range(10, 40), range(44, 48)]
    vectors = {2: 32, 3: 4}
    loops = []
    for place, span in enumerate(spans):
        inner = {at for other in spans[2:] if place == 1 for at in other}
        own = tuple(at for at in span if at not in inner)
        loops.append(CodeLoop(span[0], span[-1], own, vectors=vectors.get(place, 0)))
    function = CodeFunction("hccs_tile", ".text", tuple(range(64)), tuple(loops))
    chains = {at: [names[place]] for place, loop in enumerate(loops) for at in loop.own}
    for place in (2, 3):
        chains |= {at: ["batches", names[place]] for at in loops[place].own}
    expected = [loop for loop in kernel_loops("u8_div", 64) if loop.name in names]
    found = count([function], expected, 64, chains)
    # Fourteen trips of four batches: one of eight bits and six of one.
    assert [(loop.name, loop.iterations) for loop in found.loops] == [
        ("count_bits", 0),
        ("batches", 4),
        ("quotient_bits", 4),
        ("quotient_bits", 24),
    ]
    assert found.outside == 64 - 4 - 52
    assert found.per_row == (8 + 18 * 4 + 30 * 4 + 4 * 24) / 64


def test_a_loop_that_was_unrolled_is_not_missing() -> None:
    function = CodeFunction("hccs_tile", ".text", tuple(range(30)), (CodeLoop(5, 14, tuple(range(5, 15))),))
    chains = {at: ["row_groups"] for at in range(5, 15)} | {at: ["sum_blocks"] for at in range(20, 30)}
    found = count([function], kernel_loops("u8_clb", 64)[1:], 64, chains)
    assert found.missing == ()
    assert found.per_row == (20 + 10 * 8) / 64
