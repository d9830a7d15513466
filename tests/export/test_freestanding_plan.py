"""Places and groups: what is read is what was written, and no row is computed for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hccs.export.freestanding.plan import Plan, longest_rows, plan, scratch
from hccs.program import Program
from hccs.program import operators as op
from tests.export.programs import random_program
from tests.program.test_program import small_program
from tests.program.test_values import decoder, patches


class Memory:
    """The pools of a plan, where every integer knows whose it is."""

    def __init__(self, found: Plan) -> None:
        self.plan = found
        self.owner = {bits: np.full(count, "", dtype=object) for bits, count in found.pools.items()}

    def span(self, name: str, row: int, rows: int, width: int) -> tuple[int, slice]:
        place = self.plan.places[name]
        start = place.offset + (0 if place.tiled else row * width)
        assert start + rows * width <= self.plan.pools[place.bits]
        return place.bits, slice(start, start + rows * width)

    def write(self, name: str, row: int, rows: int, width: int) -> None:
        bits, span = self.span(name, row, rows, width)
        self.owner[bits][span] = [f"{name} {row + i // width}" for i in range(rows * width)]

    def read(self, name: str, row: int, rows: int, width: int) -> None:
        bits, span = self.span(name, row, rows, width)
        assert self.owner[bits][span].tolist() == [f"{name} {row + i // width}" for i in range(rows * width)]


def read_rows(step: op.Operator, row: int, rows: int, length: int) -> tuple[int, int]:
    return (0, length) if isinstance(step, op.Attention) else (row, rows)


def overlap(one: tuple[int, slice], other: tuple[int, slice]) -> bool:
    return one[0] == other[0] and one[1].start < other[1].stop and other[1].start < one[1].stop


def simulate(program: Program, found: Plan, length: int) -> None:
    """Run the groups as the C code does, with names in the place of numbers."""
    memory = Memory(found)
    first_of = {step.output: step.inputs[0] for step in program.operators if isinstance(step, op.First)}

    def real(name: str) -> str:
        return real(first_of[name]) if name in first_of else name

    for group in found.groups:
        if isinstance(program.operators[group.steps[0]], op.Attention):
            tiles = [(0, length if group.all_rows else 1)]
        elif group.all_rows:
            tiles = [(row, min(found.tile, length - row)) for row in range(0, length, found.tile)]
        else:
            tiles = [(0, 1)]
        for row, rows in tiles:
            for number in group.steps:
                step = program.operators[number]
                if number in found.skipped:
                    continue
                for name, bits, count in scratch(step, longest_rows(program), found.tile):
                    memory.owner[bits][memory.span(f"{step.output}.{name}", 0, 1, count)[1]] = "scratch"
                for name in step.inputs:
                    memory.read(real(name), *read_rows(step, row, rows, length), program.values[name].width)
                if number < len(program.operators) - 1:
                    if not isinstance(step, op.Table):  # all others read their rows more than once
                        written = memory.span(step.output, row, rows, program.values[step.output].width)
                        given = [
                            memory.span(real(n), *read_rows(step, row, rows, length), program.values[n].width)
                            for n in step.inputs
                        ]
                        assert not any(overlap(written, span) for span in given)
                    memory.write(step.output, row, rows, program.values[step.output].width)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    program = random_program(seed)
    found = plan(program)
    assert sorted(step for group in found.groups for step in group.steps) == list(
        range(len(program.operators))
    )
    for length in {1, (program.longest + 1) // 2, program.longest}:
        simulate(program, found, length)


def test_images_and_decoders_too() -> None:
    simulate(decoder(), plan(decoder()), 12)
    images = decoder(embed=op.EmbedPatches("x", patches()), causal=False)
    simulate(images, plan(images), 7)


def test_a_plan_that_shares_too_much_would_be_seen() -> None:
    program = small_program()
    found = plan(program)
    for name, onto in (("context", "qkv"), ("part", "x"), ("qkv", "x8")):
        moved = {**found.places, name: found.places[onto]}
        with pytest.raises(AssertionError):
            simulate(program, Plan(found.groups, moved, found.pools, found.tile, found.skipped), 12)


def test_one_answer_needs_one_row_behind_the_last_attention() -> None:
    found = plan(small_program())
    assert [group.all_rows for group in found.groups] == [True, False, False]
    assert found.without_queries == {3}
    every = plan(decoder())
    assert all(group.all_rows for group in every.groups) and not every.without_queries


def test_the_residual_stream_stays_where_it_is() -> None:
    """BERT's stream has one place in all layers: a layer writes the rows that it has read."""
    program = next(p for p in map(random_program, range(200)) if {"b2", "s"} <= set(p.values) and p.per_token)
    found = plan(program)
    assert len({found.places[name].offset for name in ("s", "b0", "b1")}) == 1
    h, n = program.values["s"].width, program.longest
    assert found.pools[8] < n * 4 * h + found.tile * (program.values["w0"].width + h) + n + 1
