"""Handing a program's plan to the engine of a backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.numbers.multipliers import INT16_LIMIT
from hccs.numbers.requant import MAX_HEAD_DIM
from hccs.ops.dispatch import backend
from hccs.program import operators as op
from hccs.program.describe import products_of
from hccs.program.layout import Plan, plan
from hccs.program.steps import Pixels, Step
from hccs.program.steps import Place as Placing
from hccs.reference.layer_norm import root_of, root_shift


def compiled(program: op.Program) -> Any | None:
    """The engine that runs this program; None without native code, or for constants that it cannot take."""
    if not all(_taken(step, program) for step in program.operators):
        return None
    try:
        engines = backend("engine", "cpu")
    except ImportError:
        return None
    planned = plan(program)
    engine = engines.Engine(planned.arena_bytes, planned.local_bytes)
    numbers = _values(engine, planned)
    for segment in planned.segments:
        engine.segment(segment[0].tokens)
        for step in segment:
            _add(engine, step, numbers, planned)
    last, embed = program.operators[-1].output, program.embed
    engine.complete(
        numbers[last],
        planned.values[last].width,
        per_token=program.per_token,
        longest=_longest(program),
        first_position=embed.first_position if isinstance(embed, op.Embed) else 0,
        products=sum(map(products_of, program.operators)),
    )
    return engine


def _taken(step: op.Operator, program: op.Program) -> bool:
    """Whether the constants are such as the kernels and the reference run; NumPy explains what it refuses."""
    if program.values[step.output].width < 1:
        return False
    match step:
        case op.Attention(theta=theta, requant=requant):
            dim = program.values[step.output].width // step.heads
            heads = (step.heads,)
            fits = theta.shape == heads and requant.shape in ((), heads)
            return fits and dim <= MAX_HEAD_DIM and requant.output is not None
        case op.Embed(limit=limit) | op.Add(limit=limit):
            return limit is None or 0 < limit <= INT16_LIMIT
        case op.Narrow(bits=bits):
            return 0 <= bits < 32
        case op.Table(entries=entries):
            return entries.shape == (256,) and entries.dtype == np.int8
    return True


def _longest(program: op.Program) -> int:
    """Tokens of a sequence or an image: with more, attention's sums could overflow, as NumPy explains."""
    rows = [step.theta.max_columns for step in program.operators if isinstance(step, op.Attention)]
    embed = program.embed
    given = embed.params.tokens if isinstance(embed, op.EmbedPatches) else program.longest
    return min([given, *rows])


def _values(engine: Any, planned: Plan) -> dict[str, int]:
    """The engine's number of every value. Bytes that attention reads stay as they are."""
    steps = [step for segment in planned.segments for step in segment]
    plain = {name for step in steps if isinstance(step.main, op.Attention) for name in step.reads}
    plain |= {step.writes[0] for step in steps if isinstance(step.main, op.First) and step.reads[0] in plain}
    numbers = {}
    for name, place in planned.places.items():
        may_turn = planned.values[name].bits == 8 and name not in plain
        numbers[name] = engine.value(place.tokens, place.local, may_turn, place.row_bytes, place.offset)
    return numbers


def _add(engine: Any, step: Step, numbers: dict[str, int], planned: Plan) -> None:
    given = [numbers[name] for name in step.reads]
    made = [numbers[name] for name in step.writes]
    match step.main:
        case op.LayerNorm():
            _add_norm(engine, step, step.main, numbers, planned)
        case op.Linear(params=linear):
            rows = step.outputs or slice(None)
            factors = None if linear.multiplier is None else linear.multiplier[rows]
            table = step.behind.entries if isinstance(step.behind, op.Table) else None
            weight, bias = np.ascontiguousarray(linear.weight[rows]), linear.bias[rows]
            engine.linear(given[0], made[0], weight, bias, factors, linear.limit, table)
        case op.Attention():
            _add_attention(engine, step, step.main, given, made[0], planned)
        case op.Embed():
            _give_embedding(engine, step.main)
            engine.embed(made[0])
        case op.Narrow(bits=bits):
            engine.narrow(given[0], made[0], planned.values[step.writes[0]].width, bits)
        case op.Add(limit=limit):
            engine.sum(*given, made[0], planned.values[step.writes[0]].width, limit or 0)
        case op.Table(entries=entries):
            engine.table(given[0], made[0], planned.values[step.writes[0]].width, entries)
        case op.First():
            engine.first(given[0], made[0], planned.values[step.writes[0]].bytes_per_row)
        case Pixels(params=patches):
            engine.pixels(made[0], len(patches.special), patches.patch, *patches.image)
        case Placing(params=patches):
            engine.place(given[0], made[0], patches.special, patches.positions)


def _give_embedding(engine: Any, embed: op.Embed) -> None:
    params = embed.params
    engine.embedding(params.words, params.positions, params.types, params.shift, embed.limit or 0)


def _add_norm(engine: Any, step: Step, norm: op.LayerNorm, numbers: dict[str, int], planned: Plan) -> None:
    a, b = (*(numbers[name] for name in step.reads), -1, -1)[:2]
    match step.before:
        case op.Embed():
            _give_embedding(engine, step.before)
            source, limit = "embedding", 0
        case op.Add(limit=given):
            source, limit = "sum", given or 0
        case None:
            source, limit = f"int{planned.values[step.reads[0]].bits}", 0
    outputs = [getattr(part, "output", "") for part in (step.before, norm, step.behind)]
    clamped, out, narrowed = (numbers[name] if name in step.writes else -1 for name in outputs)
    bits = step.behind.bits if isinstance(step.behind, op.Narrow) else 0
    params = norm.params
    h = params.channels
    engine.norm(
        params.gain, params.bias, params.gain_bits, params.epsilon, root_of(h), root_shift(h),
        source, a, b, limit, clamped, out, narrowed, bits,
    )  # fmt: skip


def _add_attention(
    engine: Any, step: Step, attention: op.Attention, given: list[int], out: int, planned: Plan
) -> None:
    width, heads = planned.values[step.writes[0]].width, attention.heads
    requant = np.ascontiguousarray(np.broadcast_to(attention.requant.packed, (heads, 5)))
    q, kv = given if len(given) == 2 else (given[0], given[0])
    k_offset = 0 if len(given) == 2 else width
    engine.attention(
        q, 0, kv, k_offset, k_offset + width, out, heads, width // heads, attention.causal,
        attention.theta.packed, requant,
    )  # fmt: skip
