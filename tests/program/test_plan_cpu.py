"""Plans: no two values share memory while both are in use, and only rows that someone needs are made."""

from __future__ import annotations

from itertools import combinations

import pytest

from hccs.executors.cpu import TARGET
from hccs.program import operators as op
from hccs.program.plan import plan
from hccs.program.plan.placement import Block, pack
from tests.program.programs import random_program
from tests.program.test_program import small_program


@pytest.mark.parametrize("seed", range(40))
def test_values_in_use_never_overlap(seed):
    planned = plan(random_program(seed), TARGET)
    written: dict[str, tuple[int, int]] = {}
    last: dict[str, tuple[int, int]] = {}
    for number, segment in enumerate(planned.groups):
        assert len({step.all_rows for step in segment}) == 1
        for moment, step in enumerate(segment):
            for name in step.reads:
                assert name in written, f"{name} is read before it is written"
                last[name] = (number, moment)
            for name in step.writes:
                written[name] = last[name] = (number, moment)
    last[list(written)[-1]] = (len(planned.groups), 0)
    for name, slot in planned.slots.items():
        assert slot.size >= planned.values[name].bytes_per_row
        assert slot.local == (written[name][0] == last[name][0])
        end = planned.pools["local" if slot.local else "arena"]
        assert slot.offset + slot.size <= end
    for one, other in combinations(planned.slots, 2):
        a, b = planned.slots[one], planned.slots[other]
        if a.local != b.local:
            continue
        # Blocks of rows run through a segment apart from each other: its moments count for local values.
        spans = [(written[n], last[n]) if a.local else (written[n][0], last[n][0]) for n in (one, other)]
        together = spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]
        apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
        assert apart or not together, f"{one} and {other}"


def test_places_are_used_again():
    blocks = [Block(str(i), "arena", 64, (i, i + 1), (i, i + 1), local=False) for i in range(10)]
    assert pack(blocks) == {"arena": 128}
    assert {block.offset for block in blocks} == {0, 64}


def test_operators_run_as_one_and_over_first_tokens_where_these_alone_are_needed():
    planned = plan(small_program(), TARGET)
    names = [
        [(type(step.main).__name__, type(step.after).__name__, step.all_rows) for step in segment]
        for segment in planned.groups
    ]
    assert names == [
        [("LayerNorm", "Narrow", True), ("Linear", "NoneType", True)],  # k and v of all tokens
        [("First", "NoneType", False), ("Linear", "NoneType", False)],  # q of the first
        [("Attention", "NoneType", False)],
        [
            ("Linear", "NoneType", False),
            ("First", "NoneType", False),
            ("LayerNorm", "Narrow", False),
            ("Linear", "Table", False),
            ("Linear", "NoneType", False),
        ],
    ]


def test_scores_per_token_need_all_rows():
    program = next(p for p in map(random_program, range(9)) if p.per_token)
    steps = [step for segment in plan(program, TARGET).groups for step in segment]
    assert all(step.all_rows for step in steps)
    assert not any(isinstance(step.main, op.First) for step in steps)
