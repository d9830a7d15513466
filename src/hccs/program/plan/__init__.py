"""`plan`: what an executor runs of a program, in which order, over which rows, and where values lie.

Operators run as one where the executor can fuse them (`fusion`), each only over the rows that someone needs
(`rows`). Groups of steps run over a block of rows one after the other; an operator that mixes rows is a group
of its own. Values whose lifetimes do not meet share memory (`placement`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from hccs.program.operators import Operator, Value
from hccs.program.plan.placement import Slot, placed
from hccs.program.plan.rows import grouped, over_needed_rows
from hccs.program.plan.steps import Fusion, Step, Target, fused, require_known
from hccs.program.program import Program

__all__ = ["Fusion", "ProgramPlan", "Slot", "Step", "Target", "plan", "require_known"]


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """Groups of steps, between which all rows must be done; every value, its slot, and the pools' sizes."""

    groups: tuple[tuple[Step, ...], ...]
    values: Mapping[str, Value]
    slots: Mapping[str, Slot]
    pools: Mapping[Hashable, int]
    tile: int


def plan(program: Program, target: Target) -> ProgramPlan:
    """The plan of a program; an operator that the executor has no code for is refused by its name."""
    operators, values = _known(program, target)
    steps = over_needed_rows(fused(operators, target), values, program, target)
    groups = grouped(steps)
    tile = min(target.tile or program.rows, program.rows)
    slots, pools = placed(groups, values, program, target, tile)
    return ProgramPlan(groups, values, slots, pools, tile)


def _known(program: Program, target: Target) -> tuple[list[Operator], dict[str, Value]]:
    """Operators that the executor knows: the others in parts."""
    operators: list[Operator] = []
    values = dict(program.values)
    for step in program.operators:
        if type(step) in target.operators or not step.parts():
            require_known(step, target.operators, target.name)
            operators.append(step)
            continue
        for part, value in step.parts():
            require_known(part, target.operators, target.name)
            operators.append(part)
            values[part.output] = value
    return operators, values
