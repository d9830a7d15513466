"""Where values lie: memory in which lifetimes that do not meet share places."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from hccs.program.operators import Value
from hccs.program.plan.steps import Step, Target
from hccs.program.program import Program


@dataclass(frozen=True)
class Slot:
    """`size` units from `offset` on in a pool; `local` to a block of rows of one group."""

    pool: Hashable
    offset: int
    size: int
    local: bool
    all_rows: bool


@dataclass
class Block:
    """Memory that one value after another may have, from its first to its last group, and moment, of use."""

    name: str
    pool: Hashable
    size: int
    groups: tuple[int, int]
    moments: tuple[int, int]
    local: bool
    offset: int = 0

    def meets(self, other: Block) -> bool:
        """Whether both are in use at one time. Blocks of rows run through a group apart from each other."""
        if self.groups[1] < other.groups[0] or other.groups[1] < self.groups[0]:
            return False
        if self.local and other.local:  # of the same group
            return self.moments[0] <= other.moments[1] and other.moments[0] <= self.moments[1]
        return True


def placed(
    groups: Sequence[Sequence[Step]],
    values: Mapping[str, Value],
    program: Program,
    target: Target,
    tile: int,
) -> tuple[dict[str, Slot], dict[Hashable, int]]:
    """The slot of every value and of scratch, and the sizes of the pools.

    The scores have a slot in the arena of a batched executor; any other writes them where its caller says.
    """
    order = [(step, group) for group, steps in enumerate(groups) for step in steps]
    found = []
    for widely in (False,) if target.batched else (False, True):
        blocks = _blocks(order, values, program, target, tile, widely)
        pools = pack(list({id(block): block for block in blocks.values()}.values()))
        # Pools are named by the bits of their integers, or hold bytes.
        size = sum(count * (pool if isinstance(pool, int) else 8) for pool, count in pools.items())
        found.append((size, blocks, pools))
    _, blocks, pools = min(found, key=lambda one: one[0])
    rows = {name: step.all_rows for step, _ in order for name in step.writes}
    slots = {
        name: Slot(block.pool, block.offset, block.size, block.local, rows.get(name, False))
        for name, block in blocks.items()
    }
    return slots, {**dict.fromkeys(target.pools or ("arena", "local"), 0), **pools}


def _blocks(
    order: Sequence[tuple[Step, int]],
    values: Mapping[str, Value],
    program: Program,
    target: Target,
    tile: int,
    widely: bool,
) -> dict[str, Block]:
    """The block of every value; with `widely` those of one group take over blocks of all rows, too."""
    scores, rows = program.operators[-1].output, program.rows
    ends: dict[str, tuple[int, int]] = {}
    for moment, (step, group) in enumerate(order):
        ends.update(dict.fromkeys((*step.reads, *step.writes), (group, moment)))
    ends[scores] = (len(order), len(order))
    blocks: dict[str, Block] = {}
    for moment, (step, group) in enumerate(order):
        for part, bits, count in target.scratch(step.main, rows, tile):
            name = f"{step.main.output}.{part}"
            blocks[name] = Block(name, bits, count, (group, group), (moment, moment), local=True)
        for name in step.writes:
            if name == scores and not target.batched:
                continue
            last_group, last = ends[name]
            wanted = []
            for local in (True, False) if widely and last_group == group else (last_group == group,):
                pool, size = _size(values[name], step.all_rows, local, rows, target, tile)
                wanted.append(Block(name, pool, size, (group, last_group), (moment, last), local))
            older = None if target.batched else _taken_over(wanted, step, blocks)
            if older is not None:
                older.groups, older.moments = (older.groups[0], last_group), (older.moments[0], last)
            blocks[name] = older or wanted[0]
    return blocks


def _size(
    value: Value, all_rows: bool, local: bool, longest: int, target: Target, tile: int
) -> tuple[Hashable, int]:
    if not target.pools:
        return "local" if local else "arena", -(-value.bytes_per_row // target.alignment) * target.alignment
    rows = (tile if local else longest) if all_rows else 1
    return value.bits, rows * value.columns


def _taken_over(wanted: Sequence[Block], step: Step, blocks: Mapping[str, Block]) -> Block | None:
    """A block of one of the wanted forms whose value this group reads for the last time, row by row, before.

    An operator that reads each integer once, before it writes it, may write over its own input.
    """
    if step.main.mixes_rows:
        return None
    for want in wanted:
        group, moment = want.groups[0], want.moments[0]
        for block in blocks.values():
            own = step.main.overwrites and blocks.get(step.reads[0]) is block
            same = (block.pool, block.size, block.local) == (want.pool, want.size, want.local)
            free = block.moments[1] < moment or (block.moments[1] == moment and own)
            if same and free and block.groups[1] == group and "." not in block.name:
                return block
    return None


def pack(blocks: Sequence[Block]) -> dict[Hashable, int]:
    """Set offsets at which no two blocks that meet overlap; the sizes of the pools.

    Each block lies as low as those before it allow: the largest first, or the earliest, whichever needs less.
    """
    orders: tuple[Callable[[Block], tuple[int, ...]], ...] = (
        lambda block: (-block.size,),
        lambda block: (block.groups[0], block.moments[0] if block.local else 0, -block.size),
    )
    pools = {}
    for pool in dict.fromkeys(block.pool for block in blocks):
        inside = [block for block in blocks if block.pool == pool]
        sizes = [_fill(sorted(inside, key=order)) for order in orders]
        if sizes[0] < sizes[1]:
            _fill(sorted(inside, key=orders[0]))
        pools[pool] = min(sizes)
    return pools


def _fill(blocks: Sequence[Block]) -> int:
    done: list[Block] = []
    for block in blocks:
        offset = 0
        for other in sorted((other for other in done if block.meets(other)), key=lambda other: other.offset):
            if offset + block.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        block.offset = offset
        done.append(block)
    return max((block.offset + block.size for block in blocks), default=0)
