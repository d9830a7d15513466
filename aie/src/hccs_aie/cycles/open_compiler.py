"""What the open-source AIE2 compiler of late 2024 does to a kernel, as rules on traces and graphs.

The rules come from bundles counted in its output and from its public sources. They and the fitted constants
below were chosen on the same counts that aie/tests/test_aie_open_compiler.py compares them with:

1. A loop whose count the compiler knows is unrolled, and straight-line code does not load what it has just
   stored. Any other loop stays one. Unless it is pipelined, each trip is waited out and moves its pointers.
2. The compiler cannot tell two buffers apart through our inlined calls: loads stay after earlier stores, and
   stores after earlier loads.
3. Registers are assigned before scheduling, so a value waits until the last reader of its register's former
   value has issued. Values take registers in program order: a scalar takes the first free one, so that rows
   which use a scalar where they load it wait for each other; a vector takes the one freed longest ago.
4. The same two orders hold from one iteration of a loop to the next, and an interval is tried only up to
   `LARGEST_INTERVAL`: short bodies are pipelined, long ones are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from hccs_aie.cycles.graph import Edge, Graph
from hccs_aie.cycles.machine import Machine
from hccs_aie.cycles.program import Item, Loop, Operation

UNROLLED_TRIPS = 16
"""The longest loop of a known count that is unrolled: a row of 512."""

LARGEST_INTERVAL = 40
"""Its pipeliner tries no larger initiation interval (llvm-aie AIEInterBlockScheduling.cpp)."""

LOOP_ENTRY = 7
"""Bundles to enter a loop: a hardware loop may end seven bundles after its set-up at the earliest."""

CALL = 165
"""Entering and leaving a kernel and its passes, with the parameters loaded and registers saved.

Fitted: 198 to 314 bundles of a compiled call of three loops were outside all of them.
"""

POINTERS = 8
ACCESSES_PER_POINTER = 5
"""Fitted: a trip takes one bundle more per so many memory accesses, up to the number of pointer registers."""

_SCALAR_REGISTERS = 16
_SHIFT_REGISTERS = 4


def pointer_moves(graph: Graph) -> int:
    """Bundles that a trip of an unpipelined loop takes to move its pointers."""
    accesses = sum(node.operation.bytes > 0 and not node.call for node in graph.nodes)
    return min(POINTERS, -(-accesses // ACCESSES_PER_POINTER))


def unrolled(items: Sequence[Item]) -> list[Item]:
    """The tree with every loop of a known count written out."""
    out: list[Item] = []
    for item in items:
        if not isinstance(item, Loop):
            out.append(item)
        elif item.fixed and item.trips <= UNROLLED_TRIPS:
            for iteration in item.iterations:
                out.extend(unrolled(iteration))
        else:
            out.append(Loop(item.label, [unrolled(i) for i in item.iterations], item.fixed))
    return out


def forwarded(items: Sequence[Item]) -> list[Item]:
    """Straight-line code in which a load of just what was stored before reads the stored value instead."""
    out: list[Item] = []
    stored: list[Operation] = []
    renamed: dict[int, tuple[int, ...]] = {}
    for item in items:
        if isinstance(item, Loop):
            out.append(Loop(item.label, [forwarded(iteration) for iteration in item.iterations], item.fixed))
            stored.clear()
            continue
        operands = tuple(
            tuple(new for value in operand for new in renamed.get(value, (value,)))
            for operand in item.operands
        )
        item = replace(item, operands=operands)
        if item.is_store:
            stored = [other for other in stored if not other.overlaps(item)]
            stored.append(item)
        elif item.name == "load":
            same = [s for s in stored if s.address == item.address and s.bytes == item.bytes]
            if same:
                renamed[item.result] = same[0].operands[0]
                continue
        out.append(item)
    return out


def keep_memory_order(graph: Graph, chip: Machine, around: bool) -> None:
    """Keep the program's order of loads and stores; with `around`, also into the loop's next iteration."""
    touching = [i for i, node in enumerate(graph.nodes) if node.operation.bytes and not node.call]
    stores = {i for i in touching if graph.nodes[i].operation.is_store}
    latency = {i: chip.instructions[graph.nodes[i].instruction].latency for i in stores}
    for place, late in enumerate(touching):
        for k, early in enumerate(touching if around else touching[:place]):
            if (early in stores) != (late in stores):
                graph.edges.append(Edge(early, late, latency.get(early, 0), int(k >= place), memory=True))


def assign_registers(graph: Graph, chip: Machine, constants: tuple[int, int], around: bool) -> None:
    """Give every value registers in program order and make each wait for the former value's readers.

    `constants` are the vectors and accumulators that loop constants occupy. A value for which nothing is free
    waits for nothing: the model spills without a cost.
    """
    files = {
        "vector": deque(range(chip.vector_registers - constants[0])),
        "accumulator": deque(range(chip.accumulators - constants[1])),
        "scalar": deque(range(_SCALAR_REGISTERS)),
        "shift": deque(range(_SHIFT_REGISTERS)),
    }
    readers: dict[int, list[int]] = {}
    for edge in graph.edges:
        if not edge.memory and edge.distance == 0:
            readers.setdefault(edge.source, []).append(edge.target)
    busy: list[tuple[int, str, int]] = []
    holders: dict[tuple[str, int], list[int]] = {}
    added: list[Edge] = []
    for index, node in enumerate(graph.nodes):
        for until, name, register in [entry for entry in busy if entry[0] <= index]:
            busy.remove((until, name, register))
            files[name].append(register)
        if node.operation.is_store or node.call:
            continue
        name, count = "scalar", 1
        if node.vectors:
            name, count = "vector", node.vectors
        elif node.accumulators:
            name, count = "accumulator", node.accumulators
        elif node.instruction == "MOV":
            name = "shift"
        for _ in range(min(count, len(files[name]))):
            register = min(files[name]) if name == "scalar" else files[name][0]
            files[name].remove(register)
            for former in holders.get((name, register), [])[-1:]:
                added.extend(_after(graph, chip, former, index, readers, 0))
            holders.setdefault((name, register), []).append(index)
            busy.append((max(readers.get(index, [index])), name, register))
    if around:
        for values in holders.values():
            added.extend(_after(graph, chip, values[-1], values[0], readers, 1))
    graph.edges.extend(dict.fromkeys(added))


def _after(
    graph: Graph, chip: Machine, former: int, later: int, readers: dict[int, list[int]], distance: int
) -> list[Edge]:
    """`later` takes the register of `former`: not written before it, nor before its readers have issued."""
    made = chip.instructions[graph.nodes[former].instruction].latency
    making = chip.instructions[graph.nodes[later].instruction].latency
    edges = [Edge(r, later, 0, distance, memory=True) for r in readers.get(former, []) if r != later]
    if former != later:
        edges.append(Edge(former, later, max(1, made - making + 1), distance, memory=True))
    return edges
