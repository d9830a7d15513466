"""Operators that run as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hccs.program.operators import Operator, Value
from hccs.program.plan.steps import Fusion, Step, Target


def fused(operators: Sequence[Operator], values: Mapping[str, Value], target: Target) -> list[Step]:
    """Steps in their order. What reads a first row reads the value itself, at first rows."""
    source = {step.output: step.inputs[0] for step in operators if step.takes_first_row}
    reads = {step.output: tuple(source.get(name, name) for name in step.inputs) for step in operators}
    running = [step for step in operators if not step.takes_first_row]
    readers: dict[str, list[Operator]] = {step.output: [] for step in running}
    for step in running:
        for name in reads[step.output]:
            readers[name].append(step)
    before = {
        step.output: step for step in running if _runs_before(step, readers[step.output], values, target)
    }
    after: set[str] = set()
    steps = []
    for step in running:
        if step.output in before or step.output in after:
            continue
        rule = target.fusions.get(type(step), Fusion())
        first = before.get(reads[step.output][0]) if reads[step.output] else None
        if first is not None and readers[first.output][0] is not step:
            first = None
        last = _next(readers[step.output], rule)
        if last is not None:
            after.add(last.output)
        stream = first is not None and rule.writes_before and values[first.output].bits <= 16
        writes = [first.output] if first is not None and stream else []
        if last is None or rule.keeps:
            writes.append(step.output)
        if last is not None:
            writes.append(last.output)
        taken = reads[(first or step).output]
        steps.append(Step(step, taken, tuple(writes), first, last))
    return steps


def _runs_before(
    step: Operator, readers: Sequence[Operator], values: Mapping[str, Value], target: Target
) -> bool:
    """Whether the first of its readers runs it: the others then read what that one writes of it."""
    rule = target.fusions.get(type(readers[0]), Fusion()) if readers else Fusion()
    shared = rule.writes_before and values[step.output].bits <= 16
    return type(step) in rule.before and (shared or len(readers) == 1)


def _next(readers: Sequence[Operator], rule: Fusion) -> Operator | None:
    if not rule.keeps and len(readers) != 1:
        return None
    return next((reader for reader in readers if type(reader) in rule.after), None)
