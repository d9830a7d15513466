"""Memory bank conflicts: an optional surcharge on a schedule, from the addresses the trace recorded.

Tile memory has eight banks of 128 bit. A bundle whose loads and stores meet in one bank waits one cycle for
each access too many. Every buffer is taken to begin at bank 0, which is what a linker does to aligned
arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from hccs_aie.cycles.model import CodeRegion, KernelCycles
from hccs_aie.cycles.program import Operation

BANKS = 8
BANK_BYTES = 16
_GAP = 64
"""Accesses further apart than this belong to different buffers."""


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


def stalls_per_iteration(region: CodeRegion) -> int:
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


def stalls(kernel: KernelCycles) -> int:
    """Modelled cycles a whole kernel call loses to bank conflicts."""
    return sum(stalls_per_iteration(region) * region.trips * region.times for region in kernel.regions)
