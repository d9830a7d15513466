"""A program as steps: operators that run as one, each only over the rows that someone needs.

Rows are tokens, or the first token of every sequence. Where a model's scores come from the first tokens
alone, so does everything behind its last attention, and that attention has one query per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hccs.numbers.patches import PatchParams
from hccs.program import operators as op
from hccs.program.values import Value


@dataclass(frozen=True, eq=False)
class Pixels:
    """The pixels of every patch; zeros in the rows of special tokens."""

    output: str
    params: PatchParams
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Place:
    """The rows of special tokens before the patches, and positions added to all."""

    inputs: tuple[str]
    output: str
    params: PatchParams


Main = op.Operator | Pixels | Place


@dataclass(frozen=True, eq=False)
class Step:
    """`main` with the operator `before` it and the one `behind` it, where they run as one.

    `before` is what a LayerNorm alone reads, `behind` the look-up behind a linear layer or the narrowing
    behind a LayerNorm. `outputs` are the rows of a linear layer's weight that are used.
    """

    main: Main
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    before: op.Embed | op.Add | None = None
    behind: op.Table | op.Narrow | None = None
    outputs: slice | None = None
    tokens: bool = True


def steps_of(program: op.Program) -> tuple[list[Step], dict[str, Value]]:
    """The steps in their order, and every value that they write."""
    operators, values = _with_patches_spelled_out(program)
    steps = _where_needed(_fused(operators), program, values)
    return _with_first_rows(steps, operators, values), values


def _with_patches_spelled_out(program: op.Program) -> tuple[list[Main], dict[str, Value]]:
    embed, values = program.embed, dict(program.values)
    if isinstance(embed, op.Embed):
        return list(program.operators), values
    params = embed.params
    pixels, patches = f"{embed.output}.pixels", f"{embed.output}.patches"
    values[pixels] = Value(8, params.projection.weight.shape[1])
    values[patches] = Value(16, params.projection.weight.shape[0])
    spelled: list[Main] = [
        Pixels(pixels, params),
        op.Linear((pixels,), patches, params.projection),
        Place((patches,), embed.output, params),
    ]
    return [*spelled, *program.operators[1:]], values


def _fused(operators: Sequence[Main]) -> list[Step]:
    readers: dict[str, list[Main]] = {}
    for step in operators:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    before: dict[str, op.Embed | op.Add] = {}
    taken: set[str] = set()
    steps = []
    for step in operators:
        behind: op.Table | op.Narrow | None = None
        reading = readers.get(step.output, [])
        match step:
            case _ if step.output in taken:
                continue
            # Whoever else reads the sum reads the clamped stream, which the LayerNorm's step writes first.
            case op.Embed() | op.Add() if (
                reading
                and isinstance(reading[0], op.LayerNorm)
                and (step.limit is not None or len(reading) == 1)
            ):
                before[step.output] = step
            case op.LayerNorm():
                source = before.get(step.inputs[0])
                if source is not None and readers[source.output][0] is not step:
                    source = None
                behind = next((reader for reader in reading if isinstance(reader, op.Narrow)), None)
                reads = step.inputs if source is None else source.inputs
                stream = () if source is None or source.limit is None else (source.output,)
                writes = (*stream, step.output, *(() if behind is None else (behind.output,)))
                steps.append(Step(step, reads, writes, source, behind))
            case op.Linear():
                if len(reading) == 1 and isinstance(reading[0], op.Table):
                    behind = reading[0]
                writes = ((behind or step).output,)
                steps.append(Step(step, step.inputs, writes, None, behind))
            case _:
                steps.append(Step(step, step.inputs, (step.output,)))
        if behind is not None:
            taken.add(behind.output)
    return steps


def _where_needed(steps: Sequence[Step], program: op.Program, values: dict[str, Value]) -> list[Step]:
    """Steps from the back: each over all tokens where someone needs them, over first tokens otherwise."""
    needed: dict[str, set[bool]] = {program.operators[-1].output: {program.per_token}}
    writers = {name: step for step in steps for name in step.writes}
    readers = [name for step in steps for name in step.reads]
    split: set[str] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        wanted = {name: needed[name] for name in step.writes if name in needed}
        if not wanted:
            continue
        embeds = isinstance(step.main, op.Embed | Pixels) or isinstance(step.before, op.Embed)
        tokens = embeds or any(True in spaces for spaces in wanted.values())
        done = [replace(step, writes=tuple(wanted), tokens=tokens)]
        if step.writes[0] in split:
            done = _query_apart(done[0], values)
        elif isinstance(step.main, op.Attention) and not tokens:
            (qkv,) = step.reads
            if (
                isinstance(writers[qkv].main, op.Linear)
                and not writers[qkv].behind
                and readers.count(qkv) == 1
            ):
                split.add(qkv)
                needed[qkv] = {True}
                done = [replace(done[0], reads=(f"{qkv}.q", f"{qkv}.kv"))]
        for part in done:
            for name in part.reads:
                attended = isinstance(part.main, op.Attention)
                needed.setdefault(name, set()).add(part.tokens or attended)
        kept += done
    return kept[::-1]


def _query_apart(step: Step, values: dict[str, Value]) -> list[Step]:
    """q of the first tokens, and k and v of all; in the order of `_where_needed`, from the back."""
    (name,) = step.writes
    third = values[name].width // 3
    values[f"{name}.q"], values[f"{name}.kv"] = Value(8, third, per_token=False), Value(8, 2 * third)
    return [
        replace(step, writes=(f"{name}.q",), outputs=slice(0, third), tokens=False),
        replace(step, writes=(f"{name}.kv",), outputs=slice(third, None)),
    ]


def _with_first_rows(
    steps: Sequence[Step], operators: Sequence[Main], values: dict[str, Value]
) -> list[Step]:
    """Steps over first tokens read values of first tokens alone: gathered, where those of all exist."""
    same = {step.output: step.inputs[0] for step in operators if isinstance(step, op.First)}
    tokens = {name: step.tokens for step in steps for name in step.writes}
    done: list[Step] = []
    gathered: set[str] = set()

    def first_of(name: str) -> str:
        name = same.get(name, name)
        if not tokens[name]:
            return name
        first = f"{name}.first"
        if first not in gathered:
            gathered.add(first)
            values[first] = replace(values[name], per_token=False)
            done.append(Step(op.First((name,), first), (name,), (first,), tokens=False))
        return first

    for step in steps:
        if isinstance(step.main, op.First):
            continue
        if not step.tokens and not isinstance(step.main, op.Attention):
            step = replace(step, reads=tuple(first_of(name) for name in step.reads))
        done.append(step)
    return done
