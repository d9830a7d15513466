"""Slots and groups for C: what is read is what was written, and no row is computed for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hccs.executors.c.table import TARGET
from hccs.program import Program
from hccs.program import operators as op
from hccs.program.plan import ProgramPlan, Step, plan
from tests.export.programs import random_program
from tests.program.programs import random_embedder
from tests.program.test_program import small_program
from tests.program.test_values import decoder, patches


class Memory:
    """The pools of a plan, where every integer knows whose it is."""

    def __init__(self, found: ProgramPlan) -> None:
        self.plan = found
        self.owner = {bits: np.full(count, "", dtype=object) for bits, count in found.pools.items()}

    def span(self, name: str, row: int, rows: int, width: int) -> tuple[int, slice]:
        slot = self.plan.slots[name]
        start = slot.offset + (0 if slot.local else row * width)
        assert start + rows * width <= self.plan.pools[slot.pool]
        return slot.pool, slice(start, start + rows * width)

    def write(self, name: str, row: int, rows: int, width: int) -> None:
        bits, span = self.span(name, row, rows, width)
        self.owner[bits][span] = [f"{name} {row + i // width}" for i in range(rows * width)]

    def read(self, name: str, row: int, rows: int, width: int) -> None:
        bits, span = self.span(name, row, rows, width)
        assert self.owner[bits][span].tolist() == [f"{name} {row + i // width}" for i in range(rows * width)]


def read_rows(step: Step, row: int, rows: int, length: int) -> tuple[int, int]:
    return (0, length) if step.main.mixes_rows else (row, rows)


def overlap(one: tuple[int, slice], other: tuple[int, slice]) -> bool:
    return one[0] == other[0] and one[1].start < other[1].stop and other[1].start < one[1].stop


def simulate(program: Program, found: ProgramPlan, length: int) -> None:
    """Run the groups as the C code does, with names in the place of numbers."""
    memory = Memory(found)
    for group in found.groups:
        if group[0].main.mixes_rows:
            tiles = [(0, length if group[0].all_rows else 1)]
        elif group[0].all_rows:
            tiles = [(row, min(found.tile, length - row)) for row in range(0, length, found.tile)]
        else:
            tiles = [(0, 1)]
        for row, rows in tiles:
            for step in group:
                output = step.main.output
                for name, bits, count in TARGET.scratch(step.main, program.rows, found.tile):
                    memory.owner[bits][memory.span(f"{output}.{name}", 0, 1, count)[1]] = "scratch"
                for name in step.reads:
                    memory.read(name, *read_rows(step, row, rows, length), program.values[name].columns)
                if step.main is not program.operators[-1]:
                    if not isinstance(
                        step.main, op.Table | op.Ramp
                    ):  # all others read their rows more than once
                        written = memory.span(output, row, rows, program.values[output].columns)
                        given = [
                            memory.span(n, *read_rows(step, row, rows, length), program.values[n].columns)
                            for n in step.reads
                        ]
                        assert not any(overlap(written, span) for span in given)
                    memory.write(output, row, rows, program.values[output].columns)


@pytest.mark.parametrize("make", [random_program, random_embedder])
@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_is_what_was_written(seed: int, make: Callable[[int], Program]) -> None:
    program = make(seed)
    found = plan(program, TARGET)
    run = [step.main for group in found.groups for step in group]
    assert run == [step for step in program.operators if not isinstance(step, op.First)]
    for length in {1, (program.longest + 1) // 2, program.longest}:
        simulate(program, found, length)


def test_images_and_decoders_too() -> None:
    tokens = decoder()
    simulate(tokens, plan(tokens, TARGET), 12)
    images = decoder(embed=op.EmbedPatches("x", patches()), causal=False)
    simulate(images, plan(images, TARGET), 7)


def test_a_plan_that_shares_too_much_would_be_seen() -> None:
    program = small_program()
    found = plan(program, TARGET)
    for name, onto in (("context", "qkv"), ("part", "x"), ("qkv", "x8")):
        moved = {**found.slots, name: found.slots[onto]}
        with pytest.raises(AssertionError):
            simulate(program, replace(found, slots=moved), 12)


def test_one_answer_needs_one_row_after_the_last_attention() -> None:
    found = plan(small_program(), TARGET)
    assert [group[0].all_rows for group in found.groups] == [True, False, False]
    assert {step.main.output: step.first_row_outputs for step in found.groups[0]} == {
        "embedded": 0, "x": 0, "x8": 0, "qkv": 16,
    }  # fmt: skip
    every = plan(decoder(), TARGET)
    assert all(step.all_rows and not step.first_row_outputs for group in every.groups for step in group)


def test_the_residual_stream_stays_where_it_is() -> None:
    """BERT's stream has one place in all layers: a layer writes the rows that it has read."""
    program = next(p for p in map(random_program, range(200)) if {"b2", "s"} <= set(p.values) and p.per_token)
    found = plan(program, TARGET)
    assert len({found.slots[name].offset for name in ("s", "b0", "b1")}) == 1
    h, n = program.values["s"].width, program.longest
    assert found.pools[8] < n * 4 * h + found.tile * (program.values["w0"].width + h) + n + 1
