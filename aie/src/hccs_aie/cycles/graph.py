"""Dependence graphs: operations lowered to machine instructions, with every latency to respect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hccs_aie.cycles.machine import Lowering, Machine
from hccs_aie.cycles.program import Operation

_ACCUMULATES = {"ups", "mul", "mac", "matrix_mul", "matrix_mac", "add_accum", "clear"}
_ACCUMULATES |= {f"{name}_float" for name in ("ups", "mul", "mac", "add_accum")}
_ACCUMULATES |= {f"{name}_wide" for name in ("ups", "mul", "mac")}
_SCALARS = {"get", "reduce_max", "reduce_add", "reduce_add_float", "clb", "inv", "compare", "scalar_load"}
_SCALARS |= {"shift_register"}
_ADDS = {"add_accum", "add_accum_float"}
_TOKEN = re.compile(
    r"(?P<kind>tree|fold|call|many)\((?P<inner>[^)]*)\)|(?P<operand>\d):(?P<on>\S+)|(?P<plain>\S+)"
)


@dataclass(frozen=True)
class Read:
    """One operand of a node: a value of the trace, or an earlier node of the same operation."""

    value: int = 0
    node: int = -1
    kind: str = "data"


@dataclass(frozen=True)
class Node:
    """One instruction to schedule. `vectors` and `accumulators` are the registers its result fills."""

    instruction: str
    reads: tuple[Read, ...]
    operation: Operation
    vectors: int = 0
    accumulators: int = 0
    call: int = 0


@dataclass(frozen=True)
class Edge:
    """`target` may start `latency` bundles after `source`, `distance` iterations later."""

    source: int
    target: int
    latency: int
    distance: int = 0
    memory: bool = False


@dataclass
class Graph:
    """Instructions of one block or one loop iteration, in program order."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def slot_counts(self, machine: Machine) -> dict[str, float]:
        """Issues per slot; an instruction that may take either load port counts half on each."""
        counts: dict[str, float] = {}
        for node in self.nodes:
            if node.call:
                continue
            alternatives = machine.instructions[node.instruction].slots
            for group in alternatives:
                for slot in group:
                    counts[slot] = counts.get(slot, 0.0) + 1.0 / len(alternatives)
        return counts


def registers(operation: Operation) -> tuple[int, int]:
    """256-bit vectors and 1024-bit accumulators that an operation's result fills."""
    if operation.name in _ACCUMULATES:
        return 0, max(1, operation.lanes * 32 // 1024)
    if operation.is_store or operation.name in _SCALARS or operation.name.startswith("scalar_"):
        return 0, 0
    width = 16 if operation.name == "unpack" else operation.bits
    return max(1, operation.lanes * width // 256), 0


def _pieces(operation: Operation, low: Lowering) -> int:
    if low.per_issue is None:
        return 1
    amount = {"lanes": operation.lanes, "B": operation.bytes, "bit": operation.lanes * operation.bits}[
        low.unit
    ]
    return -(-amount // low.per_issue)


def _operand_reads(operation: Operation) -> list[tuple[Read, ...]]:
    reads = []
    for index, operand in enumerate(operation.operands):
        accumulator = operation.name in _ADDS or (operation.name in _ACCUMULATES and index == 2)
        reads.append(tuple(Read(value=value, kind="acc" if accumulator else "data") for value in operand))
    return reads


def lower(operation: Operation, machine: Machine, first: int) -> list[Node]:
    """The nodes of one operation, numbered from `first`; the last of each piece makes the value."""
    low = machine.lowering(operation.name, operation.bits)
    reduction = "tree(" in low.recipe
    vectors, accumulators = registers(operation)
    pieces = 1 if reduction else _pieces(operation, low)
    nodes: list[Node] = []

    def add(instruction: str, reads: Sequence[Read], *, last: bool = False, call: int = 0) -> Read:
        within = (0, 1) if instruction in ("VMUL", "VMAC") else (2, 0)
        wide = (-(-vectors // pieces), -(-accumulators // pieces)) if last else within
        nodes.append(Node(instruction, tuple(reads), operation, *wide, call=call))
        return Read(node=first + len(nodes) - 1)

    for _ in range(pieces):
        operands = _operand_reads(operation)
        current: tuple[Read, ...] = tuple(read for operand in operands for read in operand)
        tokens = list(_TOKEN.finditer(low.recipe))
        for position, token in enumerate(tokens):
            last = position == len(tokens) - 1
            if token["kind"] == "call":
                current = (add("CALL", current, last=last, call=int(token["inner"])),)
            elif token["kind"] == "many":
                count, name = token["inner"].split()
                current = tuple(add(name, current) for _ in range(int(count)))
            elif token["kind"] == "fold":
                for _ in range(_pieces(operation, low).bit_length() - 1):
                    current = (add(token["inner"], current),)
            elif token["kind"] == "tree":
                native = min(operation.lanes, 512 // operation.bits)
                for _ in range(native.bit_length() - 1):
                    step = current
                    for name in token["inner"].split():
                        step = (add(name, (*step, *current) if name != "VSHIFT" else current),)
                    current = step
            elif token["operand"]:
                index = int(token["operand"])
                operands[index] = (add(token["on"], operands[index]),)
                current = tuple(read for operand in operands for read in operand)
            else:
                made = add(token["plain"], current, last=last)
                # A further product of digits takes over the accumulator.
                current = (replace(made, kind="acc") if token["plain"] in ("VMUL", "VMAC") else made,)
    return nodes


def build(body: Sequence[Operation], machine: Machine, previous: Sequence[Operation] | None = None) -> Graph:
    """The graph of a straight-line body; with `previous`, the iteration before, that of a loop's."""
    graph = Graph()
    makers: dict[int, list[int]] = {}
    spans: list[range] = []
    for operation in body:
        first = len(graph.nodes)
        made = lower(operation, machine, first)
        graph.nodes.extend(made)
        spans.append(range(first, len(graph.nodes)))
        inner = {read.node for node in made for read in node.reads if read.node >= 0}
        makers[operation.result] = [index for index in spans[-1] if index not in inner]
    carried: dict[int, list[int]] = {}
    if previous is not None:
        carried = {old.result: makers[new.result] for old, new in zip(previous, body, strict=True)}
    _value_edges(graph, machine, makers, carried)
    _memory_edges(graph, machine, body, spans, previous)
    return graph


def _value_edges(
    graph: Graph, machine: Machine, makers: dict[int, list[int]], carried: dict[int, list[int]]
) -> None:
    for target, node in enumerate(graph.nodes):
        for read in node.reads:
            distance = 0
            if read.node >= 0:
                sources = [read.node]
            elif read.value in makers:
                sources = makers[read.value]
            else:
                sources, distance = carried.get(read.value, []), 1
            for source in sources:
                made = graph.nodes[source]
                if made.call:
                    latency = made.call
                elif node.call:
                    latency = machine.instructions[made.instruction].latency
                else:
                    latency = machine.latency(made.instruction, node.instruction, read.kind)
                graph.edges.append(Edge(source, target, latency, distance))


def _memory_edges(
    graph: Graph,
    machine: Machine,
    body: Sequence[Operation],
    spans: Sequence[range],
    previous: Sequence[Operation] | None,
) -> None:
    memory = [(index, o, o.is_store) for index, o in enumerate(body) if o.bytes]

    def order(early: int, late: int, distance: int) -> None:
        for source in spans[early]:
            name = graph.nodes[source].instruction
            latency = machine.instructions[name].latency if body[early].is_store else 1
            for target in spans[late]:
                graph.edges.append(Edge(source, target, latency, distance, memory=True))

    for place, (late, operation, stores) in enumerate(memory):
        for early, other, stored in memory[:place]:
            if (stores or stored) and operation.overlaps(other):
                order(early, late, 0)
    if previous is not None:
        for late, operation, stores in memory:
            for early, _, stored in memory:
                if (stores or stored) and operation.overlaps(previous[early]):
                    order(early, late, 1)
