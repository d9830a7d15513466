"""The native engine of `hccs.backends.cpu`: a program's plan, compiled once, then run on any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccs.ops.dispatch import backend
from hccs.program import operators as op
from hccs.program.cache import is_causal
from hccs.program.plan import Fusion, ProgramPlan, Step, Target, plan
from hccs.program.program import Program
from hccs.reference.layer_norm import root_of, root_shift

CACHE_LINE = 64


def compiled(program: Program) -> Any | None:
    """The engine that runs this program; None without native code. An unknown operator is refused."""
    try:
        engines = backend("engine", "cpu")
    except ImportError:
        return None
    planned = plan(program, TARGET)
    engine = engines.Engine(planned.pools["arena"], planned.pools["local"])
    building = Building(engine, planned, program, _numbers(engine, planned))
    for group in planned.groups:
        engine.segment(group[0].all_rows)
        for step in group:
            CODE[type(step.main)](building, step, step.main)
    last, embed = program.operators[-1].output, program.embed
    longest = [step.longest_row for step in program.operators if step.longest_row is not None]
    engine.complete(
        building.numbers[last],
        planned.values[last].width,
        planned.values[last].bits // 8,
        per_token=program.per_token,
        longest=min([program.rows, *longest]),
        first_position=embed.first_position,
        products=sum(step.products for step in program.operators),
        images=embed.image is not None,
        causal=is_causal(program),
    )
    return engine


@dataclass(frozen=True, eq=False)
class Building:
    """An engine to which the steps of a program are being added, and its number of every value."""

    engine: Any
    plan: ProgramPlan
    program: Program
    numbers: dict[str, int]

    def number(self, name: str, step: Step) -> int:
        """The number of a value that a step writes; -1 where it does not."""
        return self.numbers[name] if name in step.writes else -1

    def width(self, step: Step) -> int:
        return self.plan.values[step.writes[0]].width

    def places(self, step: Step) -> list[int]:
        """The numbers of what a step reads, then of what it writes."""
        return [self.numbers[name] for name in (*step.reads, *step.writes)]


def _numbers(engine: Any, planned: ProgramPlan) -> dict[str, int]:
    """The engine's number of every value. Bytes that are read across rows are not turned."""
    steps = [step for group in planned.groups for step in group]
    mixing = [step for step in steps if step.main.mixes_rows and not step.main.copies_row]
    plain = {name for step in mixing for name in step.reads}
    plain |= {step.writes[0] for step in steps if step.main.copies_row and step.reads[0] in plain}
    return {
        name: engine.value(
            slot.all_rows,
            slot.local,
            planned.values[name].bits == 8 and name not in plain,
            slot.size,
            slot.offset,
        )
        for name, slot in planned.slots.items()
    }


def _give_embedding(building: Building, embed: op.Embed) -> None:
    p = embed.params
    building.engine.embedding(p.words, p.positions, p.types, p.shift, embed.limit or 0)


def _embed(building: Building, step: Step, embed: op.Embed) -> None:
    _give_embedding(building, embed)
    building.engine.embed(*building.places(step))


def _linear(building: Building, step: Step, linear: op.Linear) -> None:
    p, rows = linear.params, step.outputs or slice(None)
    factors = None if p.multiplier is None else p.multiplier[rows]
    weight = np.ascontiguousarray(p.weight[rows])
    table = getattr(step.after, "entries", None)
    largest = building.plan.values[step.reads[0]].exponents
    exponents = largest + 1 if largest else 0
    building.engine.linear(*building.places(step), weight, p.bias[rows], factors, p.limit, table, exponents)


def _norm_of_embedding(building: Building, embed: op.Embed) -> tuple[str, int]:
    _give_embedding(building, embed)
    return "embedding", 0


BEFORE_NORM: dict[type[op.Operator], Callable[[Building, Any], tuple[str, int]]] = {
    op.Embed: _norm_of_embedding,
    op.Add: lambda building, add: ("sum", add.limit or 0),
}
"""What LayerNorm and RMSNorm compute before themselves: the source's name, and the limit of its sum."""


ROW_EXPONENT = -1
AFTER_NORM: dict[type[Any], Callable[[Any], int]] = {
    op.Narrow: lambda narrow: int(narrow.bits),
    op.NarrowRows: lambda narrow: ROW_EXPONENT,
    type(None): lambda nothing: 0,
}
"""By how many bits they narrow what they write; each row by its own where it has exponents."""


def _norm(building: Building, step: Step, norm: op.LayerNorm | op.RmsNorm) -> None:
    a, b = (*(building.numbers[name] for name in step.reads), -1, -1)[:2]
    if step.before is None:
        source, limit = f"int{building.plan.values[step.reads[0]].bits}", 0
    else:
        source, limit = BEFORE_NORM[type(step.before)](building, step.before)
    outputs = [getattr(part, "output", "") for part in (step.before, norm, step.after)]
    clamped, out, narrowed = (building.number(name, step) for name in outputs)
    p, h = norm.params, norm.params.channels
    building.engine.norm(
        p.gain, getattr(p, "bias", None), p.gain_bits, p.epsilon, root_of(h), root_shift(h),
        source, a, b, limit, clamped, out, narrowed, AFTER_NORM[type(step.after)](step.after),
        getattr(step.after, "scale", None),
    )  # fmt: skip


def _norm_heads(building: Building, step: Step, norm: op.NormHeads) -> None:
    d = norm.gain.shape[1]
    building.engine.norm_heads(
        *building.places(step), building.width(step), norm.gain, norm.gain_bits, norm.epsilon, root_of(d),
        root_shift(d),
    )  # fmt: skip


def _attention(building: Building, step: Step, attention: op.Attention) -> None:
    width, heads, shared = building.width(step), attention.heads, attention.shared_heads
    dim = width // heads
    before, after = (op.UNLIMITED if far >= building.program.rows else far for far in attention.reach)
    requant = np.ascontiguousarray(np.broadcast_to(attention.requant.packed, (heads, 5)))
    *_, out = numbers = building.places(step)
    q, kv, k_offset = (*numbers[:2], 0) if len(step.reads) == 2 else (numbers[0], numbers[0], width)
    building.engine.attention(
        q, 0, kv, k_offset, k_offset + shared * dim, out, heads, shared, dim, before, after,
        attention.theta.packed, requant,
    )  # fmt: skip


def _one_row(building: Building, step: Step, last: bool) -> None:
    bytes_each = building.plan.values[step.writes[0]].bytes_per_row
    building.engine.one_row(*building.places(step), bytes_each, last)


def _ramp(ramp: Any) -> tuple[Any, int]:
    return (None, 0) if ramp is None else (ramp.pieces, ramp.params.bits)


def _rotate(building: Building, step: Step, rotate: op.Rotate) -> None:
    p = rotate.params
    building.engine.rotate(
        *building.places(step), building.width(step), p.cosine, p.sine, p.multiplier, p.heads + p.kv_heads,
        building.program.embed.first_position,
    )  # fmt: skip


def _multiply(building: Building, step: Step, multiply: op.Multiply) -> None:
    building.engine.multiply(
        *building.places(step), building.width(step), *_ramp(step.before), multiply.bits, multiply.limit,
        step.after is not None, getattr(step.after, "scale", None),
    )  # fmt: skip


CODE: dict[type[op.Operator], Callable[[Building, Step, Any], None]] = {
    op.Embed: _embed,
    op.CutPixels: lambda to, step, cut: to.engine.pixels(
        *to.places(step), len(cut.params.special), cut.params.patch, *cut.params.image
    ),
    op.PlacePatches: lambda to, step, place: to.engine.place(
        *to.places(step), place.params.special, place.params.positions
    ),
    op.LayerNorm: _norm,
    op.RmsNorm: _norm,
    op.Narrow: lambda to, step, narrow: to.engine.narrow(*to.places(step), to.width(step), narrow.bits),
    op.NarrowRows: lambda to, step, narrow: to.engine.narrow_rows(
        *to.places(step),
        to.width(step),
        to.plan.values[step.reads[0]].bits,
        *_ramp(step.before),
        narrow.scale,
    ),
    op.Ramp: lambda to, step, ramp: to.engine.ramp(*to.places(step), to.width(step), *_ramp(ramp)),
    op.Pool: lambda to, step, pool: to.engine.pool(
        *to.places(step), to.width(step), pool.pooling, pool.divided
    ),
    op.Unit: lambda to, step, unit: to.engine.unit(
        *to.places(step), unit.dims, to.plan.values[step.reads[0]].bits
    ),
    op.Linear: _linear,
    op.NormHeads: _norm_heads,
    op.Rotate: _rotate,
    op.Attention: _attention,
    op.Table: lambda to, step, table: to.engine.table(*to.places(step), to.width(step), table.entries),
    op.Add: lambda to, step, add: to.engine.sum(*to.places(step), to.width(step), add.limit or 0),
    op.Multiply: _multiply,
    op.First: lambda to, step, first: _one_row(to, step, last=False),
    op.Last: lambda to, step, last: _one_row(to, step, last=True),
}
"""How the step of an operator is added to the engine."""

NORM = Fusion(before=tuple(BEFORE_NORM), after=(op.Narrow, op.NarrowRows), keeps=True)
TARGET = Target(
    name="the CPU engine",
    operators=CODE,
    fusions={
        op.LayerNorm: NORM,
        op.RmsNorm: NORM,
        op.NarrowRows: Fusion(before=(op.Ramp,), writes_before=False),
        op.Multiply: Fusion(before=(op.Ramp,), after=(op.NarrowRows,), writes_before=False),
        op.Linear: Fusion(after=(op.Table,)),
    },
    batched=True,
    alignment=CACHE_LINE,
)
