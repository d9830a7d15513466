"""Checks a schedule against the machine tables from scratch, sharing no code with the schedulers."""

from __future__ import annotations

from hccs_aie.cycles.machine import Machine
from hccs_aie.cycles.schedule import BundleSchedule


def violations(schedule: BundleSchedule, machine: Machine) -> list[str]:
    """Every broken rule in words, none when sound: a slot used twice or wrongly, a latency cut short."""
    broken: list[str] = []
    used: dict[tuple[int, str], int] = {}
    busy: list[tuple[int, int, int]] = []
    for index, node in enumerate(schedule.graph.nodes):
        time, group = schedule.times[index], schedule.slots[index]
        if time < 0:
            broken.append(f"node {index} ({node.instruction}) was never scheduled")
        if node.call:
            busy.append((time, time + node.call, index))
            continue
        if group not in machine.instructions[node.instruction].slots:
            broken.append(f"node {index} ({node.instruction}) may not use {sorted(group)}")
        bundle = time % schedule.ii if schedule.ii else time
        for slot in group:
            other = used.setdefault((bundle, slot), index)
            if other != index:
                broken.append(f"nodes {other} and {index} both use {slot} in bundle {bundle}")
    for start, end, call in busy:
        for index, time in enumerate(schedule.times):
            if index != call and start <= time < end:
                broken.append(f"node {index} issues while call {call} runs")
    for edge in schedule.graph.edges:
        gap = schedule.times[edge.target] + (schedule.ii or 0) * edge.distance - schedule.times[edge.source]
        if (schedule.ii or edge.distance == 0) and gap < edge.latency:
            broken.append(
                f"node {edge.target} reads node {edge.source} after {gap} of {edge.latency} bundles"
            )
    return broken
