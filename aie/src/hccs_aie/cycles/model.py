"""Cycles of a kernel from its trace.

Every figure here is modelled: no device and no vendor compiler took part. One set of rules serves every
kernel, ours and the paper's:

1. Loops of at most `UNROLL_TRIPS` trips are unrolled. A loop that is then innermost and calls no library
   routine is software-pipelined; its cost is the length of one iteration plus (trips - 1) * II.
2. Any other loop runs its body once per trip, either as straight-line code with everything unrolled or with
   its inner loops pipelined one by one, whichever is shorter.
3. A loop that is set up costs `LOOP_SETUP` bundles; entering and leaving the kernel costs `CALL`.
4. II rises until 24 vector registers and 9 accumulators suffice.

Addresses are post-incremented by the loads and stores themselves and cost nothing.

`Compiler.STRAIGHT` and `Compiler.SERIAL` model weaker compilers: the first pipelines nothing but still
unrolls what rule 2 unrolls; the second also leaves every loop of more than two trips a loop and waits out
each iteration. `Compiler.OPEN` is the open-source AIE2 compiler, see `open_compiler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hccs_aie.arguments import Choice
from hccs_aie.cycles import open_compiler
from hccs_aie.cycles.graph import build, registers
from hccs_aie.cycles.machine import SLOTS, Generation, Machine, machine
from hccs_aie.cycles.program import (
    Item,
    Loop,
    Operation,
    RawOperation,
    addresses_read_always,
    fuse_stores,
    operations,
    parse,
    rewritten,
    shared,
    split_invariant,
    without_unread,
)
from hccs_aie.cycles.schedule import (
    BundleSchedule,
    Pressure,
    list_schedule,
    modulo_schedule,
    pressure,
    recurrence_interval,
    resource_interval,
)

SET_UP = "set-up"
"""The name of the regions outside all loops."""

UNROLL_TRIPS = 2
LOOP_SETUP = 3
CALL = 12
STRAIGHT_LINE_LIMIT = 600
"""Bodies of more operations than this are not tried as straight-line code."""


BANKS = 8
BANK_BYTES = 16
_GAP = 64
"""Accesses further apart than this belong to different buffers."""


class Compiler(Choice):
    """How well the modelled compiler overlaps iterations."""

    PIPELINED = "pipelined"
    STRAIGHT = "straight"
    SERIAL = "serial"
    OPEN = "open"


@dataclass(frozen=True)
class CodeRegion:
    """One scheduled piece of a kernel: straight-line code run `times` times, or a loop entered that often."""

    name: str
    schedule: BundleSchedule
    trips: int
    times: int
    pressure: Pressure
    fits: bool
    entering: int = 0
    """Bundles of loop set-ups, all runs together."""
    moving: int = 0
    """Bundles after each run's schedule that move pointers."""

    @property
    def cycles(self) -> int:
        return self.times * (self.schedule.cycles(self.trips) + self.moving) + self.entering


@dataclass(frozen=True)
class KernelCycles:
    """The modelled cycles of one kernel call on `rows` rows."""

    generation: Generation
    rows: int
    regions: tuple[CodeRegion, ...]
    call: int = CALL

    @property
    def cycles(self) -> int:
        return self.call + sum(region.cycles for region in self.regions)

    @property
    def per_row(self) -> float:
        return self.cycles / self.rows

    def loop(self, name: str) -> float:
        """Cycles per row inside a loop, without its set-up."""
        return sum(r.cycles - r.entering for r in self.regions if r.name == name) / self.rows

    @property
    def outside(self) -> float:
        """Cycles per row in no loop, loop set-ups included."""
        return self.per_row - sum(self.loop(name) for name in {r.name for r in self.regions} - {SET_UP})

    @property
    def issues(self) -> dict[str, float]:
        totals = dict.fromkeys(SLOTS, 0.0)
        for region in self.regions:
            for slot, count in region.schedule.graph.slot_counts(machine(self.generation)).items():
                totals[slot] += count * region.trips * region.times / self.rows
        return totals

    @property
    def bound(self) -> float:
        """Cycles per row that no schedule of these instructions can beat: those of the fullest slot.

        The two load ports share their instructions evenly.
        """
        issues = self.issues
        ports = (issues["lda"] + issues["ldb"]) / 2
        return max(ports, *(count for slot, count in issues.items() if slot not in ("lda", "ldb")))

    @property
    def binding_slot(self) -> str:
        issues = self.issues
        return max(SLOTS, key=lambda slot: issues[slot])

    @property
    def fits_registers(self) -> bool:
        return all(region.fits for region in self.regions)


class _Modeller:
    def __init__(self, chip: Machine, items: list[Item], compiler: Compiler) -> None:
        self.chip = chip
        self.compiler = compiler
        self.makers = {operation.result: operation for operation in operations(items)}

    def block(self, name: str, items: Sequence[Item], times: int) -> list[CodeRegion]:
        """Regions of a body: straight-line pieces between loops, and the loops."""
        regions: list[CodeRegion] = []
        pending: list[Operation] = []

        def flush() -> None:
            if pending:
                regions.append(self.straight(name, shared(pending), times))
                pending.clear()

        for item in items:
            if isinstance(item, Operation):
                pending.append(item)
            elif item.trips == 0 or (item.trips <= UNROLL_TRIPS and self.compiler is not Compiler.OPEN):
                pending.extend(operations([item]))
            else:
                hoisted, made = self.loop(item, times)
                pending.extend(hoisted)
                flush()
                regions.extend(made)
        flush()
        return regions

    def straight(self, name: str, body: Sequence[Operation], times: int) -> CodeRegion:
        graph = build(body, self.chip)
        if self.compiler is Compiler.OPEN:
            open_compiler.assign_registers(graph, self.chip, self._constants(body), around=False)
            open_compiler.keep_memory_order(graph, self.chip, around=False)
        schedule = list_schedule(graph, self.chip)
        used = pressure(schedule, self.chip)
        return CodeRegion(name, schedule, 1, times, used, used.fits(self.chip))

    def loop(self, loop: Loop, times: int) -> tuple[list[Operation], list[CodeRegion]]:
        """What a loop hoists before itself, and its regions."""
        at = min(2, loop.trips - 1)
        flat = [operations(iteration) for iteration in loop.iterations[: at + 1]]
        inside = {operation.result for iteration in loop.iterations for operation in operations(iteration)}
        if self.compiler is Compiler.OPEN:
            return self.open_loop(loop, flat, inside, times)
        repeated = addresses_read_always(loop)
        hoisted, body = split_invariant(flat[at], inside, repeated)
        _, before = split_invariant(flat[at - 1], inside, repeated)
        innermost = all(not isinstance(i, Loop) or i.trips <= UNROLL_TRIPS for i in loop.iterations[at])
        called = any(operation.name in self._calls() for operation in body)
        if self.compiler is Compiler.PIPELINED and innermost and not called:
            return hoisted, [self.pipelined(loop, shared(before), shared(body), times)]
        moved = {operation.result for operation in hoisted}
        runs = loop.trips * times
        inner = self.block(loop.label, _without(loop.iterations[at], moved), runs)
        if innermost or (self.compiler is not Compiler.SERIAL and len(body) <= STRAIGHT_LINE_LIMIT):
            unrolled = [self.straight(loop.label, shared(body), runs)]
            if innermost or sum(r.cycles for r in unrolled) <= sum(r.cycles for r in inner):
                return hoisted, unrolled
        return hoisted, inner

    def open_loop(
        self, loop: Loop, flat: list[list[Operation]], inside: set[int], times: int
    ) -> tuple[list[Operation], list[CodeRegion]]:
        """The same by the open compiler: inner loops stay loops, and only short bodies are pipelined."""
        repeated = addresses_read_always(loop)
        hoisted, body = ([], flat[0]) if loop.trips == 1 else split_invariant(flat[-1], inside, repeated)
        entering = open_compiler.LOOP_ENTRY * times
        moved = {operation.result for operation in hoisted}
        inner = _without(loop.iterations[len(flat) - 1], moved)
        if any(isinstance(item, Loop) for item in inner) or any(o.name in self._calls() for o in body):
            regions = self.block(loop.label, inner, loop.trips * times)
            return hoisted, [replace(regions[0], entering=regions[0].entering + entering), *regions[1:]]
        best = self.straight(loop.label, shared(body), loop.trips * times)
        best = replace(best, moving=open_compiler.pointer_moves(best.schedule.graph))
        if loop.trips > 1:
            _, before = split_invariant(flat[-2], inside, repeated)
            graph = build(shared(body), self.chip, shared(before))
            constants = self._constants(body)
            open_compiler.assign_registers(graph, self.chip, constants, around=True)
            open_compiler.keep_memory_order(graph, self.chip, around=True)
            largest = min(open_compiler.LARGEST_INTERVAL, best.schedule.length - 1)
            for ii in range(resource_interval(graph, self.chip), largest + 1):
                schedule = modulo_schedule(graph, self.chip, ii)
                if schedule is not None and schedule.cycles(loop.trips) < best.schedule.length * loop.trips:
                    used = pressure(schedule, self.chip, constants)
                    best = CodeRegion(loop.label, schedule, loop.trips, times, used, used.fits(self.chip))
                    break
        return hoisted, [replace(best, entering=entering)]

    def _calls(self) -> set[str]:
        return {low.operation for low in self.chip.lowerings.values() if "call(" in low.recipe}

    def pipelined(self, loop: Loop, before: list[Operation], body: list[Operation], times: int) -> CodeRegion:
        graph = build(body, self.chip, before)
        constants = self._constants(body)
        first = max(resource_interval(graph, self.chip), recurrence_interval(graph))
        straight = list_schedule(graph, self.chip)
        best: tuple[BundleSchedule, Pressure] | None = None
        for ii in range(first, max(first, straight.length) + 1):
            schedule = modulo_schedule(graph, self.chip, ii)
            if schedule is None:
                continue
            used = pressure(schedule, self.chip, constants)
            best = best or (schedule, used)
            if used.fits(self.chip):
                best = (schedule, used)
                break
        if best is None or not best[1].fits(self.chip):
            used = pressure(straight, self.chip, constants)
            return CodeRegion(loop.label, straight, 1, times * loop.trips, used, used.fits(self.chip))
        return CodeRegion(loop.label, best[0], loop.trips, times, best[1], True, LOOP_SETUP * times)

    def _constants(self, body: Sequence[Operation]) -> tuple[int, int]:
        made = {operation.result for operation in body}
        outside = {value for operation in body for operand in operation.operands for value in operand} - made
        filled = [registers(self.makers[value]) for value in sorted(outside) if value in self.makers]
        return sum(v for v, _ in filled), sum(a for _, a in filled)


def _without(items: Sequence[Item], values: set[int]) -> list[Item]:
    return rewritten(items, lambda item: None if item.result in values else item)


def kernel_cycles(
    trace: Iterable[RawOperation],
    generation: Generation | str,
    rows: int,
    compiler: Compiler | str = Compiler.PIPELINED,
) -> KernelCycles:
    """Model the cycles of a traced kernel call on `rows` rows."""
    return program_cycles(parse(trace), generation, rows, compiler)


def program_cycles(
    items: list[Item], generation: Generation | str, rows: int, compiler: Compiler | str = Compiler.PIPELINED
) -> KernelCycles:
    """Model the cycles of a parsed trace, which may be modelled again for other machines and compilers."""
    chip, compiler = machine(generation), Compiler(compiler)
    if compiler is Compiler.OPEN:
        items = without_unread(open_compiler.forwarded(open_compiler.unrolled(items)))
    items = fuse_stores(items)
    regions = _Modeller(chip, items, compiler).block(SET_UP, items, 1)
    call = open_compiler.CALL if compiler is Compiler.OPEN else CALL
    return KernelCycles(chip.generation, rows, tuple(regions), call)


def _buffer_starts(accesses: Sequence[Operation]) -> list[tuple[int, int]]:
    """(start, end) of each run of addresses without a gap."""
    runs: list[tuple[int, int]] = []
    for access in sorted(accesses, key=lambda operation: operation.address):
        end = access.address + access.bytes
        if runs and access.address - runs[-1][1] < _GAP:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((access.address, end))
    return runs


def bank_stalls_per_iteration(region: CodeRegion) -> int:
    """Cycles one iteration of a region loses to bank conflicts in its steady state."""
    nodes = region.schedule.graph.nodes
    accesses = [node.operation for node in nodes if node.operation.bytes and not node.call]
    runs = _buffer_starts(accesses)
    parts: dict[int, int] = {}
    bundles: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        operation = node.operation
        if node.call or not operation.bytes:
            continue
        start = next(first for first, end in runs if first <= operation.address < end)
        part = parts.get(operation.result, 0)
        parts[operation.result] = part + 1
        offset = operation.address - start + 32 * part
        time = region.schedule.times[index]
        bundle = time % region.schedule.ii if region.schedule.ii else time
        width = min(32, operation.bytes)
        banks = {(offset + at) // BANK_BYTES % BANKS for at in range(0, width, BANK_BYTES)}
        bundles.setdefault(bundle, []).extend(banks)
    return sum(max(banks.count(bank) for bank in set(banks)) - 1 for banks in bundles.values())


def bank_stalls(kernel: KernelCycles) -> int:
    """Modelled cycles that a kernel call loses to bank conflicts, which its figure leaves out.

    Tile memory has eight banks of 128 bit. A bundle whose loads and stores meet in one bank waits one cycle
    for each access too many. Every buffer is taken to begin at bank 0, as linkers place aligned arrays.
    """
    return sum(bank_stalls_per_iteration(region) * region.trips * region.times for region in kernel.regions)


_WIDTH = 16
"""Columns of a slot in a picture."""


def grid(schedule: BundleSchedule) -> list[dict[str, str]]:
    """The instruction in each slot of each bundle; a loop shows its II steady-state bundles."""
    bundles: list[dict[str, str]] = [{} for _ in range(schedule.ii or schedule.length)]
    for index, node in enumerate(schedule.graph.nodes):
        time = schedule.times[index]
        stage = f"+{time // schedule.ii}" if schedule.ii else ""
        if node.call:
            for bundle in range(time, time + node.call):
                bundles[bundle]["alu"] = "(call)"
        for slot in schedule.slots[index]:
            bundles[time % len(bundles)][slot] = node.instruction + stage
    return bundles


def ascii_picture(region: CodeRegion) -> str:
    """The schedule of a region as text; `+k` marks instructions of k iterations earlier."""
    schedule = region.schedule
    kind = f"II = {schedule.ii}" if schedule.ii else "straight-line"
    lines = [
        f"{region.name}: {kind}, {schedule.length} bundles an iteration, {region.trips} trips (modelled)"
    ]
    lines.append("bundle " + "".join(slot.ljust(_WIDTH) for slot in SLOTS).rstrip())
    for number, bundle in enumerate(grid(schedule)):
        cells = "".join(bundle.get(slot, ".").ljust(_WIDTH) for slot in SLOTS)
        lines.append(f"{number:6d} {cells}".rstrip())
    return "\n".join(lines)
