"""Rows that someone needs: those of all tokens, or of the first token of every sequence.

Where a model's scores come from the first tokens alone, so does everything after its last attention, and
that attention has one query per sequence. An executor that packs sequences runs a causal program with scores
of every token likewise: its first rows are then those of last tokens, or of all, as each call says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hccs.program.cache import is_causal
from hccs.program.operators import First, Value
from hccs.program.plan.steps import Step, Target
from hccs.program.program import Program


def over_needed_rows(
    steps: Sequence[Step], values: dict[str, Value], program: Program, target: Target
) -> list[Step]:
    """Steps over all rows where someone needs them, over first rows otherwise; unread values are not made."""
    all_scores = program.per_token and not (target.batched and is_causal(program))
    needed: dict[str, set[bool]] = {program.operators[-1].output: {all_scores}}
    writers = {name: step for step in steps for name in step.writes}
    readers = Counter(name for step in steps for name in step.reads)
    own_rows: dict[str, int] = {}
    kept: list[Step] = []
    for step in reversed(steps):
        wanted = tuple(name for name in step.writes if name in needed)
        if not wanted:
            continue
        all_rows = any(True in needed[name] for name in wanted) or (target.batched and _uses_position(step))
        done = [replace(step, writes=wanted, all_rows=all_rows)]
        if own_rows.get(wanted[0]):
            done = _with_queries_apart(done[0], own_rows[wanted[0]], values, target)
        elif step.main.mixes_rows and not all_rows:
            (name,) = step.reads
            channels, writer = step.main.own_row_channels(values[name].width), writers[name]
            if channels and writer.main.separable and writer.after is None and readers[name] == 1:
                own_rows[name], needed[name] = channels, {True}
                if target.batched:
                    done = [replace(done[0], reads=(f"{name}.q", f"{name}.kv"))]
        for part in done:
            for name in part.reads:
                needed.setdefault(name, set()).add(part.all_rows or part.main.mixes_rows)
        kept += done
    return _with_first_rows(kept[::-1], values) if target.batched else kept[::-1]


def _uses_position(step: Step) -> bool:
    return step.main.uses_position or (step.before is not None and step.before.uses_position)


def _with_queries_apart(step: Step, channels: int, values: dict[str, Value], target: Target) -> list[Step]:
    """Queries of the first rows, keys and values of all: in two steps where rows of sequences are packed."""
    (name,) = step.writes
    if not target.batched:
        return [replace(step, first_row_outputs=channels)]
    value = values[name]
    values[f"{name}.q"] = replace(value, width=channels, per_token=False)
    values[f"{name}.kv"] = replace(value, width=value.width - channels)
    return [  # from the last to the first
        replace(step, writes=(f"{name}.q",), outputs=slice(0, channels), all_rows=False),
        replace(step, writes=(f"{name}.kv",), outputs=slice(channels, None)),
    ]


def _with_first_rows(steps: Sequence[Step], values: dict[str, Value]) -> list[Step]:
    """Steps over first rows read values of first rows alone: gathered, where those of all rows exist."""
    all_rows = {name: step.all_rows for step in steps for name in step.writes}
    done: list[Step] = []
    gathered: set[str] = set()

    def first_of(name: str) -> str:
        if not all_rows[name]:
            return name
        first = f"{name}.first"
        if first not in gathered:
            gathered.add(first)
            values[first] = replace(values[name], per_token=False)
            done.append(Step(First((name,), first), (name,), (first,), all_rows=False))
        return first

    for step in steps:
        if not step.all_rows and not step.main.mixes_rows:
            step = replace(step, reads=tuple(first_of(name) for name in step.reads))
        done.append(step)
    return done


def grouped(steps: Sequence[Step]) -> tuple[tuple[Step, ...], ...]:
    """Runs of steps over the same rows; an operator that mixes rows is alone."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1][-1] if groups else None
        if last is None or step.main.mixes_rows or last.main.mixes_rows or last.all_rows != step.all_rows:
            groups.append([])
        groups[-1].append(step)
    return tuple(map(tuple, groups))
