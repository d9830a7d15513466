"""The table from operators to kernels: each entry puts constants on the device once, and returns a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hccs.executors import cpu
from hccs.program import operators as op
from hccs.program.cache import cached_heads
from hccs.program.plan import ProgramPlan, Step, Target
from hccs.program.program import Program
from hccs.reference.layer_norm import root_of, root_shift

if TYPE_CHECKING:
    from hccs.executors.cuda.space import Space

Launch: TypeAlias = "Callable[[Space], None]"


@dataclass(frozen=True, eq=False)
class Building:
    """A program whose constants are being put on a device; `kernels` is `hccs.backends.triton.program`."""

    kernels: Any
    plan: ProgramPlan
    program: Program
    device: Any

    def on_device(self, array: NDArray[Any] | None) -> Any:
        import torch

        return None if array is None else torch.tensor(np.ascontiguousarray(array), device=self.device)

    def width(self, step: Step) -> int:
        return self.plan.values[step.writes[0]].width

    def cached_before(self, attention: op.Attention) -> int:
        """The bytes of a token that the attentions before this one keep in a cache."""
        shapes = cached_heads(self.program)
        names = list(shapes)
        before = [shapes[name] for name in names[: names.index(attention.output)]]
        return sum(2 * heads * channels for heads, channels in before)

    def epilogue(self, after: op.Operator | None, small: bool) -> tuple[str, Callable[..., Any]]:
        """The value that an operator behind writes, and its `Epilogue` by where that lies.

        It takes what lies in registers: `small` if that is int16.
        """
        if after is None:
            return "", lambda out: self.kernels.Epilogue()
        kind, constants = AFTER[type(after)](self, after, small)
        return after.output, lambda out: self.kernels.Epilogue(out, kind, **constants)


def _narrow(to: Building, narrow: op.Narrow, small: bool) -> tuple[int, dict[str, Any]]:
    return to.kernels.NARROW.value, {"bits": narrow.bits}


def _narrow_rows(to: Building, narrow: op.NarrowRows, small: bool) -> tuple[int, dict[str, Any]]:
    return to.kernels.NARROW_ROWS.value, {"scale": to.kernels.scale_on(narrow.scale, small, to.device)}


AFTER: dict[type[op.Operator], Callable[[Building, Any, bool], tuple[int, dict[str, Any]]]] = {
    op.Narrow: _narrow,
    op.NarrowRows: _narrow_rows,
}
"""What runs behind another operator, or alone: its kind of epilogue and its constants."""


def _embedding(to: Building, embed: op.Embed) -> Callable[[Space, tuple[str, ...]], dict[str, Any]]:
    p = embed.params
    positions = None if p.positions is None else p.positions[embed.first_position :]
    named = {"words": p.words, "positions": positions, "types": p.types}
    tables = {f"{name}_table": to.on_device(table) for name, table in named.items()}
    kind = to.kernels.EMBEDDING.value
    fixed = {**tables, "kind": kind, "shift": p.shift, "limit": embed.limit or 0}
    return lambda at, reads: {**fixed, "ids": at.ids, "types": at.types, "positions": at.positions}


def _sum(to: Building, add: op.Add) -> Callable[[Space, tuple[str, ...]], dict[str, Any]]:
    fixed = {"kind": to.kernels.SUM.value, "limit": add.limit or 0}
    return lambda at, reads: {**fixed, "a": at[reads[0]], "b": at[reads[1]]}


def _value(to: Building, nothing: None) -> Callable[[Space, tuple[str, ...]], dict[str, Any]]:
    return lambda at, reads: {"a": at[reads[0]]}


BEFORE: dict[type[Any], Callable[[Building, Any], Callable[[Space, tuple[str, ...]], dict[str, Any]]]] = {
    op.Embed: _embedding,
    op.Add: _sum,
    type(None): _value,
}
"""What a norm computes before itself: the fields of its `Source`."""


def _norm(to: Building, step: Step, norm: op.LayerNorm | op.RmsNorm) -> Launch:
    kernels, p, h = to.kernels, norm.params, norm.params.channels
    source = BEFORE[type(step.before)](to, step.before)
    before = getattr(step.before, "output", "")
    after = step.after if getattr(step.after, "output", "") in step.writes else None
    narrowed, epilogue = to.epilogue(after, small=True)
    gain, bias = kernels.gain_and_bias_on(p, to.device)
    numbers = p.epsilon, root_of(h), root_shift(h), p.gain_bits

    def launch(at: Space) -> None:
        given = source(at, step.reads)
        kept = at[before] if before in step.writes else None
        out = at[norm.output] if norm.output in step.writes else None
        after = epilogue(at[narrowed]) if narrowed else epilogue(None)
        kernels.norm(kernels.Source(**given, clamped=kept), out, after, *at.rows(step), gain, bias, numbers)

    return launch


def _norm_heads(to: Building, step: Step, norm: op.NormHeads) -> Launch:
    heads = tuple(to.on_device(part) for part in (norm.gain, norm.gain_bits, norm.epsilon))
    (x,), (out,), width, h = step.reads, step.writes, to.width(step), norm.gain.shape[1]
    numbers = root_of(h), root_shift(h)
    return lambda at: to.kernels.norm_heads(at[x], at[out], *at.rows(step), width, heads, numbers)


def _source_alone(to: Building, step: Step, main: op.Operator) -> Launch:
    """An embedding or a sum that no norm takes."""
    source, width, (out,) = BEFORE[type(main)](to, main), to.width(step), step.writes
    kernels = to.kernels

    def launch(at: Space) -> None:
        kernels.rows(
            kernels.Source(**source(at, step.reads)), at[out], kernels.Epilogue(), *at.rows(step), width
        )

    return launch


def _of_value(to: Building, step: Step, after: op.Operator | None = None, **main: Any) -> Launch:
    """An operator on a value, whose ramp in front and epilogue behind run with it."""
    kernels, width = to.kernels, to.width(step)
    ramp = step.before
    if ramp is not None:
        main = {**main, **_ramp_of(to, ramp)}
    narrowed, epilogue = to.epilogue(after, small=ramp is not None and "main" not in main)

    def launch(at: Space) -> None:
        out = None if narrowed else at[step.writes[0]]
        other = {"other": at[step.reads[1]]} if len(step.reads) > 1 else {}
        after = epilogue(at[narrowed]) if narrowed else epilogue(None)
        kernels.rows(kernels.Source(a=at[step.reads[0]]), out, after, *at.rows(step), width, **other, **main)

    return launch


def _ramp_of(to: Building, ramp: Any) -> dict[str, Any]:
    return {"constants": (to.kernels.pieces_on(ramp.params, to.device),), "ramp_bits": ramp.params.bits}


def _multiply(to: Building, step: Step, multiply: op.Multiply) -> Launch:
    return _of_value(
        to, step, step.after, main=to.kernels.MULTIPLY.value, product_bits=multiply.bits, limit=multiply.limit
    )


def _rotate(to: Building, step: Step, rotate: op.Rotate) -> Launch:
    kernels, p, width = to.kernels, rotate.params, to.width(step)
    constants = tuple(to.on_device(part) for part in (p.cosine, p.sine, p.multiplier))
    numbers = {"dim": width // p.all_heads, "turned": p.heads + p.kv_heads, "pairs": p.pairs}

    def launch(at: Space) -> None:
        source = kernels.Source(a=at[step.reads[0]], positions=at.positions)
        kernels.rows(
            source, at[step.writes[0]], kernels.Epilogue(), *at.rows(step), width,
            main=kernels.ROTATE.value, constants=constants, **numbers,
        )  # fmt: skip

    return launch


def _linear(to: Building, step: Step, linear: op.Linear) -> Launch:
    (x,), (out,) = step.reads, step.writes
    table = getattr(step.after, "entries", None)
    exponents = to.plan.values[x].exponents > 0
    layer = to.kernels.layer_on(linear.params, step.outputs or slice(None), table, exponents, to.device)
    return lambda at: to.kernels.linear(at[x], at[out], at.rows(step)[0], layer)


def _attention(to: Building, step: Step, attention: op.Attention) -> Launch:
    width, heads, shared = to.width(step), attention.heads, attention.shared_heads
    dim = width // heads
    before, after = (min(far, to.program.rows) for far in attention.reach)
    constants = to.kernels.heads_on(
        attention.theta, attention.requant, shared, dim, (before, after), to.device
    )
    apart = len(step.reads) == 2
    q, kv = step.reads if apart else step.reads * 2
    (out,) = step.writes
    bytes_before = to.cached_before(attention)

    def launch(at: Space) -> None:
        keys = at[kv][:, 0 if apart else width :]
        if at.cached is not None:
            last = not step.all_rows
            to.kernels.attention_over_cache(
                at[q], keys, at[out], at.cached, constants, bytes_before, last, apart
            )
            return
        outs = at.starts if step.all_rows else at.first_starts
        to.kernels.attention(
            at[q], keys, keys[:, shared * dim :], at[out], outs if apart else at.starts, at.starts, outs,
            constants, at.room.longest,
        )  # fmt: skip

    return launch


def _one_row(to: Building, step: Step, last: bool) -> Launch:
    """Copies of the first or the last rows of sequences, with their exponents."""
    kernels, columns = to.kernels, to.plan.values[step.writes[0]].columns

    def launch(at: Space) -> None:
        source = kernels.Source(a=at[step.reads[0]], index=at.lasts if last else at.firsts)
        kernels.rows(source, at[step.writes[0]], kernels.Epilogue(), *at.rows(step), columns)

    return launch


def _pool(to: Building, step: Step, pool: op.Pool) -> Launch:
    (x,), (out,), width = step.reads, step.writes, to.width(step)
    return lambda at: to.kernels.pool(
        at[x], at[out], at.starts, at.rows(step)[0], width, pool.pooling, pool.divided
    )


def _unit(to: Building, step: Step, unit: op.Unit) -> Launch:
    (x,), (out,) = step.reads, step.writes
    return lambda at: to.kernels.unit(at[x], at[out], *at.rows(step), at.answer_width, unit.dims)


def _cut_pixels(to: Building, step: Step, cut: op.CutPixels) -> Launch:
    patch, special, (out,) = cut.params.patch, len(cut.params.special), step.writes
    return lambda at: to.kernels.cut_pixels(
        at.images, at[out], at.rows(step)[0], at.positions, at.sequences, patch, special
    )


def _place_patches(to: Building, step: Step, place: op.PlacePatches) -> Launch:
    kernels, p, width = to.kernels, place.params, to.width(step)
    special, positions = to.on_device(p.special), to.on_device(p.positions)

    def launch(at: Space) -> None:
        source = kernels.Source(
            kernels.PATCHES.value, at[step.reads[0]], positions=at.positions, words_table=special,
            positions_table=positions, special=len(special), limit=32767,
        )  # fmt: skip
        kernels.rows(source, at[step.writes[0]], kernels.Epilogue(), *at.rows(step), width)

    return launch


CODE: dict[type[op.Operator], Callable[[Building, Step, Any], Launch]] = {
    op.Embed: _source_alone,
    op.CutPixels: _cut_pixels,
    op.PlacePatches: _place_patches,
    op.LayerNorm: _norm,
    op.RmsNorm: _norm,
    op.NormHeads: _norm_heads,
    op.Narrow: lambda to, step, narrow: _of_value(to, step, narrow),
    op.NarrowRows: lambda to, step, narrow: _of_value(to, step, narrow),
    op.Ramp: lambda to, step, ramp: _of_value(to, step, **_ramp_of(to, ramp)),
    op.Pool: _pool,
    op.Unit: _unit,
    op.Linear: _linear,
    op.Rotate: _rotate,
    op.Attention: _attention,
    op.Table: lambda to, step, table: _of_value(
        to, step, main=to.kernels.TABLE.value, constants=(to.on_device(table.entries),)
    ),
    op.Add: _source_alone,
    op.Multiply: _multiply,
    op.First: lambda to, step, first: _one_row(to, step, last=False),
    op.Last: lambda to, step, last: _one_row(to, step, last=True),
}
"""How the step of an operator is launched."""

TARGET = Target(
    name="the CUDA executor",
    operators=CODE,
    fusions=cpu.TARGET.fusions,
    batched=True,
    alignment=64,
)
