"""Schedulers, list schedules for straight-line code and modulo schedules for loops.

They are deterministic: ties fall to program order.
"""

from __future__ import annotations

from dataclasses import dataclass

from hccs_aie.cycles.graph import Edge, Graph
from hccs_aie.cycles.machine import Machine


@dataclass(frozen=True)
class BundleSchedule:
    """The bundle and the slots in which every node issues.

    `ii` is the initiation interval of a loop, None for straight-line code.
    """

    graph: Graph
    times: tuple[int, ...]
    slots: tuple[frozenset[str], ...]
    length: int
    ii: int | None = None

    def cycles(self, trips: int = 1) -> int:
        """Modelled bundles for `trips` iterations: the last one starts (trips - 1) * II after the first."""
        if self.ii is None:
            return self.length * trips
        return self.length + (trips - 1) * self.ii


class _Reservations:
    """Which slots of which bundle are taken; bundles wrap around at `ii`.

    `claims` are issues still to come that have no choice of slot: in a modulo schedule, instructions that
    do have a choice leave them room.
    """

    def __init__(self, ii: int | None = None, claims: dict[str, int] | None = None) -> None:
        self.ii = ii
        self.claims = dict(claims or {})
        self.used: dict[str, int] = {}
        self.taken: set[tuple[int, str]] = set()

    def free(self, time: int, alternatives: tuple[frozenset[str], ...]) -> frozenset[str] | None:
        bundle = time if self.ii is None else time % self.ii
        for group in alternatives:
            crowded = len(alternatives) > 1 and any(
                self.ii is not None and self.used.get(slot, 0) + self.claims.get(slot, 0) >= self.ii
                for slot in group
            )
            if not crowded and all((bundle, slot) not in self.taken for slot in group):
                return group
        return None

    def take(self, time: int, group: frozenset[str], forced: bool = False) -> None:
        bundle = time if self.ii is None else time % self.ii
        for slot in group:
            self.taken.add((bundle, slot))
            self.used[slot] = self.used.get(slot, 0) + 1
            if forced:
                self.claims[slot] = self.claims.get(slot, 0) - 1


def _claims(graph: Graph, machine: Machine) -> dict[str, int]:
    claims: dict[str, int] = {}
    for node in graph.nodes:
        alternatives = machine.instructions[node.instruction].slots
        if len(alternatives) == 1:
            for slot in alternatives[0]:
                claims[slot] = claims.get(slot, 0) + 1
    return claims


def heights(graph: Graph) -> list[int]:
    """Longest latency path from each node to the end of the block."""
    height = [0] * len(graph.nodes)
    outgoing: dict[int, list[Edge]] = {}
    for edge in graph.edges:
        if edge.distance == 0:
            outgoing.setdefault(edge.source, []).append(edge)
    for index in reversed(range(len(graph.nodes))):
        height[index] = max(
            (edge.latency + height[edge.target] for edge in outgoing.get(index, [])), default=1
        )
    return height


def list_schedule(graph: Graph, machine: Machine) -> BundleSchedule:
    """Greedy, longest remaining path first. A library call lets nothing else issue while it runs."""
    count = len(graph.nodes)
    height = heights(graph)
    outgoing: list[list[Edge]] = [[] for _ in range(count)]
    unplaced, earliest = [0] * count, [0] * count
    for edge in graph.edges:
        if edge.distance == 0:
            outgoing[edge.source].append(edge)
            unplaced[edge.target] += 1
    times = [-1] * count
    slots: list[frozenset[str]] = [frozenset()] * count
    waiting = sorted(range(count), key=lambda index: (-height[index], index))
    reservations = _Reservations()

    def place(index: int, time: int) -> None:
        times[index] = time
        for edge in outgoing[index]:
            unplaced[edge.target] -= 1
            earliest[edge.target] = max(earliest[edge.target], time + edge.latency)

    time = 0
    while waiting:
        issued = False
        for index in waiting:
            if unplaced[index] or earliest[index] > time:
                continue
            node = graph.nodes[index]
            if node.call:
                if not issued:
                    place(index, time)
                    time += node.call
                    break
                continue
            group = reservations.free(time, machine.instructions[node.instruction].slots)
            if group is not None:
                reservations.take(time, group)
                slots[index] = group
                place(index, time)
                issued = True
        else:
            time += 1
        waiting = [index for index in waiting if times[index] < 0]
    ends = [t + max(graph.nodes[i].call, 1) for i, t in enumerate(times)]
    return BundleSchedule(graph, tuple(times), tuple(slots), max(ends, default=0))


def resource_interval(graph: Graph, machine: Machine) -> int:
    alone: dict[str, int] = {}
    ports = 0
    for node in graph.nodes:
        alternatives = machine.instructions[node.instruction].slots
        if len(alternatives) == 1:
            for slot in alternatives[0]:
                alone[slot] = alone.get(slot, 0) + 1
        if all(group <= {"lda", "ldb"} for group in alternatives):
            ports += len(alternatives[0])
    return max([1, -(-ports // 2), *alone.values()])


def recurrence_interval(graph: Graph) -> int:
    interval = 1
    while _has_positive_cycle(graph, interval):
        interval += 1
    return interval


def _has_positive_cycle(graph: Graph, ii: int) -> bool:
    reach = [0] * len(graph.nodes)
    for _ in range(len(graph.nodes) + 1):
        moved = False
        for edge in graph.edges:
            candidate = reach[edge.source] + edge.latency - ii * edge.distance
            if candidate > reach[edge.target]:
                reach[edge.target] = candidate
                moved = True
        if not moved:
            return False
    return True


def modulo_schedule(graph: Graph, machine: Machine, ii: int) -> BundleSchedule | None:
    """Place nodes last to first, each as late as its readers allow; None if II is too small.

    So values live briefly. A node without placed readers goes to the end. In any II neighbouring bundles
    each modulo slot occurs once, so a window that long decides whether a node fits.
    """
    count = len(graph.nodes)
    outgoing: list[list[Edge]] = [[] for _ in range(count)]
    incoming: list[list[Edge]] = [[] for _ in range(count)]
    for edge in graph.edges:
        outgoing[edge.source].append(edge)
        incoming[edge.target].append(edge)
    times: list[int | None] = [None] * count
    slots: list[frozenset[str]] = [frozenset()] * count
    reservations = _Reservations(ii, _claims(graph, machine))
    for index in reversed(range(count)):
        latest, earliest = 0, -(10**9)
        for edge in outgoing[index]:
            if edge.target == index:
                if edge.latency > ii * edge.distance:
                    return None
                continue
            placed = times[edge.target]
            if placed is not None:
                latest = min(latest, placed + ii * edge.distance - edge.latency)
        for edge in incoming[index]:
            placed = times[edge.source]
            if placed is not None and edge.source != index:
                earliest = max(earliest, placed + edge.latency - ii * edge.distance)
        alternatives = machine.instructions[graph.nodes[index].instruction].slots
        for time in range(latest, max(earliest, latest - ii + 1) - 1, -1):
            group = reservations.free(time, alternatives)
            if group is not None:
                reservations.take(time, group, forced=len(alternatives) == 1)
                times[index], slots[index] = time, group
                break
        else:
            return None
    start = min((t for t in times if t is not None), default=0)
    final = tuple(t - start for t in times if t is not None)
    return BundleSchedule(graph, final, tuple(slots), max(final, default=-1) + 1, ii)


@dataclass(frozen=True)
class Pressure:
    """The most registers alive in one bundle."""

    vectors: int
    accumulators: int

    def fits(self, machine: Machine) -> bool:
        return self.vectors <= machine.vector_registers and self.accumulators <= machine.accumulators


def pressure(schedule: BundleSchedule, machine: Machine, invariant: tuple[int, int] = (0, 0)) -> Pressure:
    """Peak registers of a schedule; `invariant` are those that loop constants hold throughout.

    A register is taken from the bundle in which the result arrives to the last bundle that reads it. In a
    modulo schedule lifetimes longer than II overlap themselves.
    """
    graph, ii = schedule.graph, schedule.ii
    last: dict[int, int] = {}
    for edge in graph.edges:
        if not edge.memory:
            use = schedule.times[edge.target] + (ii or 0) * edge.distance
            last[edge.source] = max(last.get(edge.source, use), use)
    span = ii or schedule.length or 1
    live = [[0, 0] for _ in range(span)]
    for index, until in last.items():
        node = graph.nodes[index]
        if node.call:
            continue
        # Forwarded results reach their reader before the register file: alive from then on.
        arrival = min(schedule.times[index] + machine.instructions[node.instruction].latency, until)
        for time in range(arrival, until + 1):
            live[time % span][0] += node.vectors
            live[time % span][1] += node.accumulators
    return Pressure(
        invariant[0] + max((v for v, _ in live), default=0),
        invariant[1] + max((a for _, a in live), default=0),
    )
