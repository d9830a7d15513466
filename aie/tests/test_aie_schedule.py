"""Schedulers against hand-worked examples, exhaustive search on tiny graphs, and an independent verifier."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from aie.tests.verifier import violations

from hccs_aie.cycles.graph import Edge, Graph, Node
from hccs_aie.cycles.machine import machine
from hccs_aie.cycles.program import Operation
from hccs_aie.cycles.schedule import (
    BundleSchedule,
    list_schedule,
    modulo_schedule,
    pressure,
    recurrence_interval,
    resource_interval,
)

CHIP = machine("aie2")
NOTHING = Operation("max", 64, 8, 1, ())


def graph(*instructions: str, edges: list[tuple[int, ...]] = ()) -> Graph:  # type: ignore[assignment]
    return Graph(
        [Node(name, (), NOTHING, vectors=2) for name in instructions], [Edge(*edge) for edge in edges]
    )


def test_a_chain_by_hand() -> None:
    # load (7) -> max (1 by forwarding) -> max (2, no forwarding to the store) -> store
    chain = graph("VLD", "VMAX_LT", "VMAX_LT", "VST", edges=[(0, 1, 7), (1, 2, 1), (2, 3, 2)])
    schedule = list_schedule(chain, CHIP)
    assert schedule.times == (0, 7, 8, 10)
    assert schedule.length == 11
    assert violations(schedule, CHIP) == []


def test_two_loads_share_a_bundle_and_a_third_waits() -> None:
    schedule = list_schedule(graph("VLD", "VLD", "VLD"), CHIP)
    assert sorted(schedule.times) == [0, 0, 1]


def test_a_gather_takes_both_ports() -> None:
    schedule = list_schedule(graph("VLDB.4x", "VLD"), CHIP)
    assert sorted(schedule.times) == [0, 1]


def test_a_call_lets_nothing_else_issue() -> None:
    call = Graph(
        [Node("VMAX_LT", (), NOTHING), Node("CALL", (), NOTHING, call=44), Node("VBCST", (), NOTHING)]
    )
    call.edges = [Edge(0, 1, 2), Edge(1, 2, 44)]
    schedule = list_schedule(call, CHIP)
    assert schedule.times == (0, 2, 46)
    assert violations(schedule, CHIP) == []


def test_intervals_by_hand() -> None:
    loop = graph(
        "VLD", "VMAX_LT", "VMAX_LT", "VMAX_LT", "VST", edges=[(0, 1, 7), (1, 2, 1), (2, 3, 1), (3, 4, 2)]
    )
    assert resource_interval(loop, CHIP) == 3
    assert recurrence_interval(loop) == 1
    # An accumulator carried around the loop by the multiplier's 2-cycle path.
    total = graph("VLD", "VMAC", edges=[(0, 1, 7), (1, 1, 2, 1)])
    assert recurrence_interval(total) == 2
    schedule = modulo_schedule(total, CHIP, 2)
    assert schedule is not None
    assert schedule.times == (0, 7)
    assert schedule.cycles(trips=10) == 8 + 9 * 2
    assert modulo_schedule(total, CHIP, 1) is None


def test_pressure_by_hand() -> None:
    # The loaded register is alive from bundle 7 to 9: three bundles, so three copies at II = 1.
    loop = graph("VLD", "VST", edges=[(0, 1, 7)])
    late = BundleSchedule(loop, (0, 9), (frozenset({"lda"}), frozenset({"st"})), 10, 1)
    assert pressure(late, CHIP).vectors == 6
    assert pressure(dataclasses.replace(late, times=(0, 7), length=8), CHIP).vectors == 2


def random_graph(seed: int, carried: bool) -> Graph:
    rng = random.Random(seed)
    names = [rng.choice(["VLD", "VMAX_LT", "VMAC", "VST", "ALU", "VSRS"]) for _ in range(rng.randint(2, 6))]
    edges = []
    for early, late in itertools.combinations(range(len(names)), 2):
        if rng.random() < 0.4:
            edges.append((early, late, rng.randint(1, 4), 0))
    if carried:
        late, early = sorted(rng.choices(range(len(names)), k=2), reverse=True)
        edges.append((late, early, rng.randint(1, 4), 1))
    return graph(*names, edges=edges)


def feasible(candidate: Graph, times: tuple[int, ...], ii: int | None) -> bool:
    """A legal choice of ports exists exactly when no bundle has two of one slot, or three loads."""
    for bundle in {t % ii if ii else t for t in times}:
        names = [
            candidate.nodes[i].instruction for i, t in enumerate(times) if (t % ii if ii else t) == bundle
        ]
        slots = [min(min(group) for group in CHIP.instructions[name].slots) for name in names]
        if any(slots.count(slot) > (2 if slot == "lda" else 1) for slot in slots):
            return False
    return all(
        times[e.target] + (ii or 0) * e.distance - times[e.source] >= e.latency
        for e in candidate.edges
        if ii or e.distance == 0
    )


def shortest(candidate: Graph, limit: int) -> int:
    for length in range(1, limit + 1):
        for times in itertools.product(range(length), repeat=len(candidate.nodes)):
            if max(times) == length - 1 and feasible(candidate, times, None):
                return length
    return limit + 1


@pytest.mark.parametrize("seed", range(60))
def test_lists_against_exhaustive_search(seed: int) -> None:
    candidate = random_graph(seed, carried=False)
    schedule = list_schedule(candidate, CHIP)
    assert violations(schedule, CHIP) == []
    if schedule.length ** len(candidate.nodes) < 300_000:
        # Greedy lists are not optimal in general; on these graphs they are within one bundle.
        assert schedule.length - 1 <= shortest(candidate, schedule.length) <= schedule.length


@pytest.mark.parametrize("seed", range(60))
def test_modulo_schedules_against_exhaustive_search(seed: int) -> None:
    candidate = random_graph(seed, carried=seed % 2 == 1)
    floor = max(resource_interval(candidate, CHIP), recurrence_interval(candidate))
    ii = next(ii for ii in range(floor, 40) if modulo_schedule(candidate, CHIP, ii))
    schedule = modulo_schedule(candidate, CHIP, ii)
    assert schedule is not None
    assert violations(schedule, CHIP) == []
    if floor > 1 and len(candidate.nodes) <= 5:
        # No schedule at a smaller interval exists: the bounds are true bounds.
        window = range(0, 8)
        smaller = itertools.product(window, repeat=len(candidate.nodes))
        assert not any(feasible(candidate, times, floor - 1) for times in smaller)
    if seed % 2 == 0:
        assert ii == floor, "without recurrences the slots alone decide"


def test_the_verifier_sees_every_kind_of_break() -> None:
    pair = graph("VMAX_LT", "VMAX_LT", edges=[(0, 1, 1)])
    mv = frozenset({"mv"})
    assert violations(BundleSchedule(pair, (0, 1), (mv, mv), 2), CHIP) == []
    assert "both use mv" in violations(BundleSchedule(pair, (0, 0), (mv, mv), 1), CHIP)[0]
    assert "after 0 of 1" in violations(BundleSchedule(pair, (0, 0), (mv, mv), 1), CHIP)[1]
    assert "may not use" in violations(BundleSchedule(pair, (0, 1), (mv, frozenset({"st"})), 2), CHIP)[0]
    assert "both use mv" in violations(BundleSchedule(pair, (0, 2), (mv, mv), 3, ii=2), CHIP)[0]
    assert "never scheduled" in violations(BundleSchedule(pair, (-1, 1), (mv, mv), 2), CHIP)[0]
