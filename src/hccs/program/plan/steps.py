"""`Target`: what an executor asks of a plan; `Step`: what it runs as one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hccs.errors import ModelError
from hccs.program.operators import Operator


@dataclass(frozen=True)
class Fusion:
    """What an executor runs together with one kind of operator.

    It takes the kinds `before` it, whose values it writes too unless it cannot (then no other reads them),
    and the kinds `after` it.
    With `keeps` it writes its own value beside that of the operator after it; without, no other reads it.
    """

    before: tuple[type[Operator], ...] = ()
    after: tuple[type[Operator], ...] = ()
    keeps: bool = False
    writes_before: bool = True


def no_scratch(step: Operator, rows: int, tile: int) -> Iterable[tuple[str, int, int]]:
    """No integers beside the values."""
    return ()


@dataclass(frozen=True)
class Target:
    """An executor, as the planner sees it.

    `operators` are the kinds that it has code for. A `batched` executor packs the rows of many sequences:
    first rows are gathered into values of their own. Any other runs one sequence, whose first row lies where
    all rows do, and may write rows over those that it has read.

    Without `pools` a slot has bytes of one row, rounded up to `alignment`, in "arena" or, where one group
    alone uses it, in "local". With `pools`, one for each width of integers, a slot has integers of all rows,
    or of a `tile` of rows where one group alone uses it; `scratch` is named, with its bits and number.
    """

    name: str
    operators: Container[type[Operator]]
    fusions: Mapping[type[Operator], Fusion] = field(default_factory=dict)
    batched: bool = False
    alignment: int = 1
    tile: int | None = None
    pools: tuple[int, ...] = ()
    scratch: Callable[[Operator, int, int], Iterable[tuple[str, int, int]]] = no_scratch


@dataclass(frozen=True, eq=False)
class Step:
    """`main` with the operators `before` and `after` it that run as one with it.

    `outputs` are the channels that a separable operator computes, all by default; only the first row of a
    sequence needs the first `first_row_outputs` of them. Without `all_rows` it runs over first rows.
    """

    main: Operator
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    before: Operator | None = None
    after: Operator | None = None
    outputs: slice | None = None
    first_row_outputs: int = 0
    all_rows: bool = True


def require_known(step: Operator, operators: Container[type[Operator]], executor: str) -> None:
    """Refuse an operator that an executor has no code for."""
    if type(step) not in operators:
        raise ModelError(
            f"operators that {executor} runs",
            f"{type(step).__name__} ({step.output!r})",
            f"Add an entry for {type(step).__name__} to the table of {executor}, or run it in NumPy.",
        )


def fused(operators: Sequence[Operator], target: Target) -> list[Step]:
    """Steps in their order. What reads a first row reads the value itself, at first rows."""
    source = {step.output: step.inputs[0] for step in operators if step.takes_first_row}
    reads = {step.output: tuple(source.get(name, name) for name in step.inputs) for step in operators}
    running = [step for step in operators if not step.takes_first_row]
    readers: dict[str, list[Operator]] = {step.output: [] for step in running}
    for step in running:
        for name in reads[step.output]:
            readers[name].append(step)
    before = {
        step.output: step
        for step in running
        if _runs_before(step, readers[step.output], target)
        and reads[readers[step.output][0].output][0] == step.output
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
        writes = [first.output] if first is not None and rule.writes_before else []
        if last is None or rule.keeps:
            writes.append(step.output)
        if last is not None:
            writes.append(last.output)
        taken = reads[step.output] if first is None else reads[first.output] + reads[step.output][1:]
        steps.append(Step(step, taken, tuple(writes), first, last))
    return steps


def _runs_before(step: Operator, readers: Sequence[Operator], target: Target) -> bool:
    """Whether the first of its readers runs it: the others then read what that one writes of it."""
    rule = target.fusions.get(type(readers[0]), Fusion()) if readers else Fusion()
    return type(step) in rule.before and (rule.writes_before or len(readers) == 1)


def _next(readers: Sequence[Operator], rule: Fusion) -> Operator | None:
    if not rule.keeps and len(readers) != 1:
        return None
    return next((reader for reader in readers if type(reader) in rule.after), None)
