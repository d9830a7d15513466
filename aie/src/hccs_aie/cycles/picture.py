"""Schedules as pictures: text for the terminal, PNG for reports. One row per bundle, one column per slot."""

from __future__ import annotations

import os
from pathlib import Path

from hccs import _figures
from hccs_aie.cycles.machine import SLOTS
from hccs_aie.cycles.model import CodeRegion, KernelCycles
from hccs_aie.cycles.schedule import BundleSchedule

_WIDTH = 16
_COLOURS = {
    "lda": "#4c78a8", "ldb": "#72b7b2", "alu": "#eeca3b", "mv": "#e45756", "st": "#54a24b", "vec": "#b279a2",
}  # fmt: skip


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


def png_picture(kernel: KernelCycles, path: str | os.PathLike[str], title: str) -> Path:
    """Draw the regions that cost a twentieth or more side by side; colours are slots, white is empty."""
    regions = [region for region in kernel.regions if region.cycles >= 0.05 * kernel.cycles]
    figure = _figures.new(1.2 + 2.2 * len(regions), 7)
    axes = figure.subplots(1, len(regions), squeeze=False)[0]
    for axis, region in zip(axes, regions, strict=True):
        bundles = grid(region.schedule)
        for number, bundle in enumerate(bundles):
            for column, slot in enumerate(SLOTS):
                if slot in bundle:
                    axis.broken_barh([(column, 0.92)], (number, 0.92), color=_COLOURS[slot])
        interval = f"II {region.schedule.ii}" if region.schedule.ii else "straight"
        axis.set(
            xlim=(0, len(SLOTS)), ylim=(len(bundles), 0), title=f"{region.name}\n{interval} x {region.trips}"
        )
        axis.set_xticks([i + 0.5 for i in range(len(SLOTS))], SLOTS, rotation=90)
        axis.title.set_fontsize(8)
        axis.tick_params(labelsize=7)
    figure.suptitle(f"{title}: {kernel.per_row:.1f} modelled cycles per row", fontsize=9)
    return _figures.save(figure, path)
