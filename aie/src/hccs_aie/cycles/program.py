"""From a flat trace to a tree of blocks and loops, and the clean-ups a compiler does before it schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

RawOperation = tuple[str, str, int, int, int, list[int], int, int]

_STORES = {"store", "store_srs", "scalar_store"}
_MEMORY = {"load", "scalar_load", *_STORES}
_ALIASES = {"extract", "concat", "same_shuffle"}

View = tuple[object, ...]
"""How an operand looks at values: ("value", number), or a part or a joining of other views."""


@dataclass(frozen=True)
class Operation:
    """One recorded AIE API operation.

    `operands` are the values it reads, sub-register moves seen through; `views` tell apart what `operands`
    no longer do: which half of a register is read.
    """

    name: str
    lanes: int
    bits: int
    result: int
    operands: tuple[tuple[int, ...], ...]
    views: tuple[View, ...] = ()
    address: int = 0
    bytes: int = 0

    @property
    def is_store(self) -> bool:
        return self.name in _STORES

    def overlaps(self, other: Operation) -> bool:
        return self.address < other.address + other.bytes and other.address < self.address + self.bytes


@dataclass
class Loop:
    """A counted loop: its iterations in order, each a list of operations and inner loops."""

    label: str
    iterations: list[list[Item]] = field(default_factory=list)
    fixed: bool = False
    """Whether the source tells a compiler the count."""

    @property
    def trips(self) -> int:
        return len(self.iterations)


Item = Operation | Loop


def parse(trace: Iterable[RawOperation]) -> list[Item]:
    """The tree of a trace; sub-register moves become aliases, results nobody reads disappear."""
    names: dict[int, tuple[int, ...]] = {}
    views: dict[int, View] = {}
    root: list[Item] = []
    stack: list[Loop] = []
    body = root
    for name, label, lanes, bits, result, reads, address, size in trace:
        if name == "loop_begin":
            loop = Loop(label, fixed=bool(bits))
            body.append(loop)
            stack.append(loop)
        elif name == "iteration":
            body = []
            stack[-1].iterations.append(body)
        elif name == "loop_end":
            stack.pop()
            body = stack[-1].iterations[-1] if stack else root
        else:
            operands = tuple(names.get(read, (read,)) for read in reads)
            looks = tuple(views.get(read, ("value", read)) for read in reads)
            if name in _ALIASES:
                names[result] = tuple(dict.fromkeys(value for operand in operands for value in operand))
                views[result] = (name, address, lanes, *looks)
            else:
                body.append(Operation(name, lanes, bits, result, operands, looks, address, size))
    return without_unread(root)


def operations(items: Sequence[Item]) -> list[Operation]:
    """Every operation of a tree in program order, all iterations of all loops."""
    flat: list[Operation] = []
    for item in items:
        if isinstance(item, Loop):
            for iteration in item.iterations:
                flat.extend(operations(iteration))
        else:
            flat.append(item)
    return flat


def rewritten(items: Sequence[Item], each: Callable[[Operation], Operation | None]) -> list[Item]:
    """The tree with every operation replaced by what `each` makes of it, or left out where that is None."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            out.append(replace(item, iterations=[rewritten(body, each) for body in item.iterations]))
        elif (made := each(item)) is not None:
            out.append(made)
    return out


def without_unread(root: list[Item]) -> list[Item]:
    """The tree without results that neither a store nor another operation reads."""
    read: set[int] = set()
    for operation in reversed(operations(root)):
        if operation.is_store or operation.result in read:
            read.update(value for operand in operation.operands for value in operand)
    return rewritten(root, lambda item: item if item.is_store or item.result in read else None)


def fuse_stores(items: list[Item]) -> list[Item]:
    """Turn a shift-round-saturate that only a store of all its lanes reads into one storing instruction."""
    every = operations(items)
    narrowed = {o.result: o for o in every if o.name == "srs" and o.bits < 32}
    readers: dict[int, list[Operation]] = {value: [] for value in narrowed}
    for operation in every:
        for operand in operation.operands:
            for value in operand:
                if value in narrowed:
                    readers[value].append(operation)
    fused = {
        value: narrowed[value]
        for value, users in readers.items()
        if len(users) == 1 and users[0].name == "store" and users[0].lanes == narrowed[value].lanes
    }

    def fuse(item: Operation) -> Operation | None:
        if item.result in fused:
            return None
        if item.name == "store" and (source := fused.get(item.operands[0][0])) is not None:
            return replace(item, name="store_srs", operands=source.operands, views=source.views)
        return item

    return rewritten(items, fuse)


def shared(items: Sequence[Operation]) -> list[Operation]:
    """Compute common subexpressions once: equal pure operations, and loads with no store between them."""
    renamed: dict[int, int] = {}
    known: dict[tuple[object, ...], Operation] = {}
    out: list[Operation] = []
    for item in items:
        operands = tuple(tuple(renamed.get(value, value) for value in operand) for operand in item.operands)
        item = replace(item, operands=operands, views=tuple(_renamed(view, renamed) for view in item.views))
        if item.is_store:
            for key in [k for k, seen in known.items() if seen.name in _MEMORY and seen.overlaps(item)]:
                del known[key]
            out.append(item)
            continue
        key = (item.name, item.lanes, item.bits, item.views, item.address)
        earlier = known.get(key)
        # Constants that were plain numbers left no operand: equal text is then not equal value.
        if earlier is not None and (operands or item.name in _MEMORY):
            renamed[item.result] = earlier.result
        else:
            known[key] = item
            out.append(item)
    return out


def _renamed(view: View, names: dict[int, int]) -> View:
    if view[0] == "value":
        return ("value", names.get(view[1], view[1]))  # type: ignore[call-overload]
    return tuple(_renamed(part, names) if isinstance(part, tuple) else part for part in view)


def addresses_read_always(loop: Loop) -> set[int]:
    """Addresses of the memory operations that every iteration has."""
    read = ({o.address for o in operations(items) if o.name in _MEMORY} for items in loop.iterations)
    return set.intersection(*read)


def split_invariant(
    body: Sequence[Operation], inside: set[int], repeated: set[int]
) -> tuple[list[Operation], list[Operation]]:
    """Split one iteration into what a compiler hoists before the loop, and the rest.

    Hoisted: operations whose operands all come from outside the loop, and loads from an address that every
    iteration reads (`repeated`) and that no store of the loop touches. `inside` are the values that the loop
    makes.
    """
    stores = [operation for operation in body if operation.is_store]
    hoisted_values: set[int] = set()
    hoisted: list[Operation] = []
    rest: list[Operation] = []
    for operation in body:
        invariant = not operation.is_store and all(
            value not in inside or value in hoisted_values
            for operand in operation.operands
            for value in operand
        )
        if operation.name in _MEMORY:
            untouched = not any(operation.overlaps(store) for store in stores)
            invariant = invariant and operation.address in repeated and untouched
        if invariant:
            hoisted.append(operation)
            hoisted_values.add(operation.result)
        else:
            rest.append(operation)
    return hoisted, rest
