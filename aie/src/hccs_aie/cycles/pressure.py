"""Registers a schedule needs at once: 256-bit vectors and 1024-bit accumulators."""

from __future__ import annotations

from dataclasses import dataclass

from hccs_aie.cycles.machine import Machine
from hccs_aie.cycles.schedule import BundleSchedule


@dataclass(frozen=True)
class Pressure:
    """The most registers alive in one bundle."""

    vectors: int
    accumulators: int

    def fits(self, machine: Machine) -> bool:
        """True when no value would have to be spilled."""
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
