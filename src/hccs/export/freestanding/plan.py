"""Where the values of a program lie in memory, and which operators run together over a few rows.

All operators but attention work on rows one by one. So a program falls into groups: between two attentions
all operators run over a tile of rows, then over the next one, and what no other group reads needs room for a
tile alone. Behind the last attention of a model with one answer only the first row is computed at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hccs.program import operators as op

TILE = 4
"""Rows that go through a group together: products take them in pairs, and each pair reads all weights."""

POOLS = (32, 16, 8)
"""One array for each width of integers: no memory is ever read as another type than it was written."""


@dataclass(frozen=True)
class Place:
    """Integers of `bits` from `offset` on in their pool: all rows of a value, or as many as a tile has."""

    bits: int
    offset: int
    tiled: bool


@dataclass(frozen=True)
class Group:
    """Operators, by number, that run together: over all rows in tiles, or over the first row alone."""

    steps: tuple[int, ...]
    all_rows: bool


@dataclass(frozen=True)
class Plan:
    """The groups, the place of every value and of every operator's scratch, and the pools' sizes.

    `skipped` are operators without any work left: the first row of a value lies where the value does.
    `without_queries` are linear layers of q, k and v whose attention has one query, that of the first row.
    """

    groups: tuple[Group, ...]
    places: Mapping[str, Place]
    pools: Mapping[int, int]
    tile: int
    skipped: frozenset[int]
    without_queries: frozenset[int] = frozenset()

    @property
    def arena_bytes(self) -> int:
        """Of all pools."""
        return sum(bits // 8 * count for bits, count in self.pools.items())


@dataclass
class _Block:
    """Memory that one value after another may hold: from the first to the last group, or step, of them."""

    name: str
    bits: int
    count: int
    groups: tuple[int, int]
    steps: tuple[int, int]
    tiled: bool
    offset: int = field(default=0)

    def meets(self, other: _Block) -> bool:
        """Whether both hold something at one time."""
        if self.groups[1] < other.groups[0] or other.groups[1] < self.groups[0]:
            return False
        if self.tiled and other.tiled:  # of the same group: its operators run one after the other
            return not (self.steps[1] < other.steps[0] or other.steps[1] < self.steps[0])
        return True


def plan(program: op.Program) -> Plan:
    """Groups and places of a program for sequences of up to `program.longest` tokens, or for its images."""
    longest = longest_rows(program)
    tile = min(TILE, longest)
    everywhere = _needed_everywhere(program)
    groups = _groups(program, everywhere)
    group_of = {step: number for number, group in enumerate(groups) for step in group.steps}
    readers = _readers(program)
    blocks: dict[str, _Block] = {}
    for number, step in enumerate(program.operators):
        here = group_of[number]
        for name, bits, count in scratch(step, longest, tile):
            place = f"{step.output}.{name}"
            blocks[place] = _Block(place, bits, count, (here, here), (number, number), True)
        if step is program.operators[-1]:
            continue  # the scores are written where the caller wants them
        if isinstance(step, op.First):
            blocks[step.output] = blocks[step.inputs[0]]
        else:
            last = readers[step.output]
            value = program.values[step.output]
            tiled = all(group_of[reader] == here for reader in last)
            all_rows = everywhere[step.output]
            rows = (tile if tiled else longest) if all_rows else 1
            block = _Block(step.output, value.bits, rows * value.width, (here, here), (number, number), tiled)
            blocks[step.output] = _taken_over(step, number, here, block, blocks, readers, group_of) or block
        held = blocks[step.output]
        ends = [number, *readers[step.output]]
        held.groups = (held.groups[0], max(held.groups[1], *(group_of[end] for end in ends)))
        held.steps = (held.steps[0], max(held.steps[1], *ends))
    pools = _fill(list({id(block): block for block in blocks.values()}.values()))
    places = {name: Place(block.bits, block.offset, block.tiled) for name, block in blocks.items()}
    skipped = frozenset(i for i, step in enumerate(program.operators) if isinstance(step, op.First))
    return Plan(groups, places, pools, tile, skipped, _without_queries(program, everywhere, readers))


def longest_rows(program: op.Program) -> int:
    """Rows of the longest sequence; an image always has as many."""
    embed = program.embed
    return embed.params.tokens if isinstance(embed, op.EmbedPatches) else program.longest


def scratch(step: op.Operator, longest: int, tile: int) -> Iterator[tuple[str, int, int]]:
    """Name, width and number of the integers that an operator needs beside its values."""
    if isinstance(step, op.Attention):
        yield "logits", 8, longest
        yield "scores", 16, longest
    if isinstance(step, op.EmbedPatches):
        yield "pixels", 8, tile * step.params.projection.weight.shape[1]


def _needed_everywhere(program: op.Program) -> dict[str, bool]:
    """Whether any later operator needs more of a value than the first row; keys and values always do."""
    needed = {step.output: False for step in program.operators}
    needed[program.operators[-1].output] = program.per_token
    for step in reversed(program.operators):
        for name in step.inputs:
            if isinstance(step, op.Attention) or (not isinstance(step, op.First) and needed[step.output]):
                needed[name] = True
    return needed


def _without_queries(
    program: op.Program, everywhere: Mapping[str, bool], readers: Mapping[str, list[int]]
) -> frozenset[int]:
    """Linear layers that one attention alone reads, and of its queries the first one only."""
    found = set()
    for number, step in enumerate(program.operators):
        if isinstance(step, op.Linear) and len(readers[step.output]) == 1:
            reader = program.operators[readers[step.output][0]]
            if isinstance(reader, op.Attention) and not everywhere[reader.output]:
                found.add(number)
    return frozenset(found)


def _groups(program: op.Program, everywhere: Mapping[str, bool]) -> tuple[Group, ...]:
    found: list[Group] = []
    alone = True  # attention reads all rows of its input before the next operator may start
    for number, step in enumerate(program.operators):
        all_rows = everywhere[step.output]
        if isinstance(step, op.Attention) or alone or found[-1].all_rows != all_rows:
            found.append(Group((number,), all_rows))
        else:
            found[-1] = Group((*found[-1].steps, number), all_rows)
        alone = isinstance(step, op.Attention)
    return tuple(found)


def _readers(program: op.Program) -> dict[str, list[int]]:
    """Which operators read a value, also as the first row of it."""
    readers: dict[str, list[int]] = {step.output: [] for step in program.operators}
    for number, step in enumerate(program.operators):
        for name in step.inputs:
            readers[name].append(number)
    for step in reversed(program.operators):
        if isinstance(step, op.First):
            readers[step.inputs[0]] += readers[step.output]
    return readers


def _taken_over(
    step: op.Operator,
    number: int,
    here: int,
    wanted: _Block,
    blocks: Mapping[str, _Block],
    readers: Mapping[str, list[int]],
    group_of: Mapping[int, int],
) -> _Block | None:
    """The block of a value of the same shape that this group reads for the last time, row by row, before.

    A table's output may lie where its input lies: each value is read before it is written.
    """
    if isinstance(step, op.Attention):
        return None
    for block in {id(block): block for block in blocks.values()}.values():
        last = block.steps[1]
        ends_before = last < number or (
            last == number and isinstance(step, op.Table) and blocks[step.inputs[0]] is block
        )
        same = (block.bits, block.count, block.tiled) == (wanted.bits, wanted.count, wanted.tiled)
        if same and ends_before and block.groups[1] == here and "." not in block.name:
            return block
    return None


def _fill(blocks: list[_Block]) -> dict[int, int]:
    """Place all blocks, the largest first, each as low as those that it meets allow; the pools' sizes."""
    pools = dict.fromkeys(POOLS, 0)
    placed: list[_Block] = []
    for block in sorted(blocks, key=lambda block: -block.count):
        in_the_way = sorted(
            (other for other in placed if other.bits == block.bits and block.meets(other)),
            key=lambda other: other.offset,
        )
        offset = 0
        for other in in_the_way:
            if offset + block.count <= other.offset:
                break
            offset = max(offset, other.offset + other.count)
        block.offset = offset
        placed.append(block)
        pools[block.bits] = max(pools[block.bits], offset + block.count)
    return pools
