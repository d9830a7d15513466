"""Where the values of a plan lie: steps in segments, and one arena in which lifetimes share places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hccs.program import operators as op
from hccs.program.steps import Step, steps_of
from hccs.program.values import Value

ALIGNMENT = 64
"""Bytes of a cache line: rows start at multiples."""


@dataclass(frozen=True)
class Place:
    """A value's bytes of a row: from `offset` on, in the arena, or local to a block of one segment's rows."""

    tokens: bool
    local: bool
    row_bytes: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """Segments of steps, between which all rows must be done; places of all values; bytes that a row takes.

    A block of rows runs through a segment's steps one after the other, so that what only they read never
    leaves the cache.
    """

    segments: tuple[tuple[Step, ...], ...]
    values: Mapping[str, Value]
    places: Mapping[str, Place]
    arena_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class Lifetime:
    """A value's bytes of a row, and the first and the last moment at which it is in use."""

    name: str
    row_bytes: int
    first: int
    last: int


def plan(program: op.Program) -> Plan:
    """The plan of a program."""
    steps, values = steps_of(program)
    segments = _segments(steps)
    order = [
        (step, number, moment)
        for number, segment in enumerate(segments)
        for moment, step in enumerate(segment)
    ]
    written = {name: (step, number, moment) for step, number, moment in order for name in step.writes}
    read: dict[str, list[tuple[int, int]]] = {name: [] for name in written}
    for step, number, moment in order:
        for name in step.reads:
            read[name].append((number, moment))
    read[program.operators[-1].output].append((len(segments), 0))  # by the caller

    lasting: list[Lifetime] = []
    passing: list[list[Lifetime]] = [[] for _ in segments]
    for name, (_, number, moment) in written.items():
        size = -(-values[name].bytes_per_row // ALIGNMENT) * ALIGNMENT
        last = max(read[name], default=(number, moment))
        if last[0] == number:
            passing[number].append(Lifetime(name, size, moment, last[1]))
        else:
            lasting.append(Lifetime(name, size, number, last[0]))
    arena, arena_bytes = placed(lasting)
    local, local_bytes = {}, 0
    for lifetimes in passing:
        offsets, size = placed(lifetimes)
        local.update(offsets)
        local_bytes = max(local_bytes, size)
    places = {
        life.name: Place(written[life.name][0].tokens, life.name in local, life.row_bytes, offset)
        for life in [*lasting, *(life for lifetimes in passing for life in lifetimes)]
        for offset in [local.get(life.name, arena.get(life.name, 0))]
    }
    return Plan(segments, values, places, arena_bytes, local_bytes)


def _segments(steps: Sequence[Step]) -> tuple[tuple[Step, ...], ...]:
    """Runs of steps over the same rows; attention, which mixes rows, alone."""
    segments: list[list[Step]] = []
    for step in steps:
        before = segments[-1][-1] if segments else None
        alone = isinstance(step.main, op.Attention)
        if before is None or alone or isinstance(before.main, op.Attention) or before.tokens != step.tokens:
            segments.append([])
        segments[-1].append(step)
    return tuple(map(tuple, segments))


def placed(lifetimes: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Offsets at which no two values that live at the same moment overlap, and the bytes of all."""
    offsets: dict[str, int] = {}
    done: list[Lifetime] = []
    for life in sorted(lifetimes, key=lambda life: (life.first, -life.row_bytes)):
        beside = sorted(
            (offsets[other.name], other.row_bytes)
            for other in done
            if other.first <= life.last and life.first <= other.last
        )
        offset = 0
        for begin, size in beside:
            if offset + life.row_bytes <= begin:
                break
            offset = max(offset, begin + size)
        offsets[life.name] = offset
        done.append(life)
    return offsets, max((offsets[life.name] + life.row_bytes for life in lifetimes), default=0)
