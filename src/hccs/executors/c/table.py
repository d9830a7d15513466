"""The table of the C executor: for every operator its constants as C, its scratch and its call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.executors.c.literals import array, as_bytes, numbers_of
from hccs.executors.c.tokenizer import Tables
from hccs.numbers.heads import NAMES
from hccs.numbers.layers import LinearParams
from hccs.numbers.score_tables import DISTANCES, ScoreTable
from hccs.program import operators as op
from hccs.program.plan import ProgramPlan, Step, Target, require_known
from hccs.program.program import Program
from hccs.reference.layer_norm import root_of, root_shift

TILE = 4
"""Rows that go through a group together: products take them in pairs, and each pair reads all weights."""

POOLS = {32: "i32", 16: "i16", 8: "i8"}
"""One array for each width of integers: no memory is ever read as another type than it was written."""

HEAD_BYTES = 48
"""Bytes of an `hccs_attention_head`: theta's six, two multipliers with their shifts, and an address."""


@dataclass(frozen=True)
class Answer:
    """What a model answers in C: the array's name, the type of its numbers, and how their count is called."""

    name: str
    type: str
    count: str


def answer_of(program: Program) -> Answer:
    """Scores, or a vector."""
    last = program.operators[-1]
    kind = f"int{program.values[last.output].bits}_t"
    name = "scores" if program.values[last.output].bits == 32 else "vector"
    return Answer(name, kind, "LABELS" if last.labelled else "DIMS")


@dataclass(frozen=True, eq=False)
class Writing:
    """A program that is being written, its plan, and the words to keep: all of them where None.

    `text` are the tables of its tokenizer, for programs that read texts. Of a program that `generates` only
    the last row has scores, and attention goes over a cache. `array` defines a constant, `pack`
    lays out the weights of a linear layer, for the functions of the header `operators`.
    """

    program: Program
    plan: ProgramPlan
    kept: NDArray[np.int32] | None = None
    text: Tables | None = None
    array: Callable[[str, NDArray[Any]], str] = array
    pack: Callable[[NDArray[np.int8]], NDArray[np.int8]] = np.asarray
    operators: str = "hccs_operators.h"
    generates: bool = False

    @property
    def answer(self) -> Answer:
        return answer_of(self.program)

    def name(self, step: op.Operator) -> str:
        """The C name of an operator's constants: its number and the value that it writes."""
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in step.output)
        return f"hccs_{self.program.operators.index(step)}_{plain}"


@dataclass(frozen=True, eq=False)
class Call:
    """The call of a step over `rows` rows from `row` on: what an operator's code is written with.

    Of every token the cache of a generating program has `cached` bytes before those of this step.
    """

    writing: Writing
    step: Step
    cached: int = 0

    @property
    def position(self) -> str:
        """The position in the text of the first of the rows."""
        return "position + row" if self.writing.generates else "row"

    @property
    def name(self) -> str:
        return self.writing.name(self.step.main)

    @property
    def width(self) -> int:
        return self.writing.program.values[self.step.main.output].width

    @property
    def bits(self) -> int:
        return self.writing.program.values[self.step.main.output].bits

    @property
    def count(self) -> str:
        """The integers of the output's rows."""
        return f"rows * {self.width}"

    @property
    def out(self) -> str:
        """Where the output's rows lie; an answer lies where the caller of the model wants it."""
        program = self.writing.program
        if self.step.main is program.operators[-1]:
            every = program.per_token and not self.writing.generates
            return self.writing.answer.name + f" + row * {self.width}" * every
        return self.place(self.step.main.output, program.values[self.step.main.output].columns)

    def read(self, index: int = 0) -> str:
        """Where the rows of an input lie."""
        return self.place(self.step.reads[index], self.given(index).columns)

    def given(self, index: int = 0) -> op.Value:
        return self.writing.plan.values[self.step.reads[index]]

    def place(self, name: str, columns: int = 0) -> str:
        """Where a value or scratch lies: from its first row on, or from `row` on in rows of `columns`."""
        slot = self.writing.plan.slots[name]
        text = f"arena.{POOLS[slot.pool]} + {slot.offset}"  # type: ignore[index]
        return text if slot.local or not columns or not self.step.all_rows else f"{text} + row * {columns}"

    def scratch(self, part: str) -> str:
        return self.place(f"{self.step.main.output}.{part}")


def _no_constants(writing: Writing, step: Any) -> Iterator[str]:
    return iter(())


def _no_scratch(step: Any, rows: int, tile: int) -> Iterable[tuple[str, int, int]]:
    return ()


def _described_bytes(writing: Writing, step: op.Operator) -> tuple[int, int]:
    return 0, step.constant_bytes


@dataclass(frozen=True)
class Code:
    """An operator in C.

    `call` is the call; `declared` the type of its constants, with {} for their name; `constants` define them;
    `scratch` names integers that it needs beside its values, with their bits and number; `size` counts the
    bytes of words, and of all other constants.
    """

    call: Callable[[Call], str]
    declared: str = ""
    constants: Callable[[Writing, Any], Iterator[str]] = _no_constants
    scratch: Callable[[Any, int, int], Iterable[tuple[str, int, int]]] = _no_scratch
    size: Callable[[Writing, Any], tuple[int, int]] = _described_bytes


def code_of(step: op.Operator) -> Code:
    """The entry of an operator; one without is refused."""
    require_known(step, CODE, TARGET.name)
    return CODE[type(step)]


def structure(kind: str, name: str, parts: Iterable[Any]) -> str:
    """The definition of an operator's structure."""
    return f"const {kind} {name} = {{{', '.join(map(str, parts))}}};\n"


def _embed_constants(writing: Writing, step: op.Embed) -> Iterator[str]:
    p, name, kept = step.params, writing.name(step), writing.kept
    words = p.words if kept is None else p.words[kept]
    yield writing.array(f"{name}_words", words)
    if p.positions is not None:
        used = p.positions[step.first_position : step.first_position + writing.program.rows]
        yield writing.array(f"{name}_positions", used)
    if p.types is not None:
        yield writing.array(f"{name}_types", p.types)
    if kept is not None:
        yield writing.array(f"{name}_kept", kept)
    added = {f"{name}_positions": p.positions, f"{name}_types": p.types}
    tables = [as_bytes(f"{name}_words"), *("NULL" if part is None else name for name, part in added.items())]
    ids = "NULL" if kept is None else f"{name}_kept"
    yield structure("hccs_embedding", name, [*tables, ids, len(words), words.shape[1], p.shift])


def _embed_size(writing: Writing, step: op.Embed) -> tuple[int, int]:
    p, kept = step.params, writing.kept
    words = p.words.nbytes if kept is None else len(kept) * p.words.shape[1] + kept.nbytes
    positions = 0 if p.positions is None else writing.program.rows * p.positions[0].nbytes
    return words, positions + (0 if p.types is None else p.types.nbytes)


def _embed_call(call: Call) -> str:
    limit = call.step.main.limit  # type: ignore[attr-defined]
    clamped = "" if limit is None else f"{limit}, "
    ids = "tokens + row, types == NULL ? NULL : types + row"
    return f"hccs_embed_{call.bits}(&{call.name}, {ids}, {call.position}, rows, {clamped}{call.out})"


def _linear_parts(writing: Writing, name: str, layer: LinearParams) -> Generator[str, None, str]:
    """Arrays of a layer, then its structure as the result."""
    yield writing.array(f"{name}_weight", writing.pack(layer.weight))
    yield writing.array(f"{name}_bias", layer.bias)
    if layer.multiplier is not None:
        yield writing.array(f"{name}_multiplier", layer.multiplier)
    multiplier = "NULL" if layer.multiplier is None else f"{name}_multiplier"
    outputs, inputs = layer.weight.shape
    numbers = f"{inputs}, {outputs}, {layer.limit}"
    return f"{{{as_bytes(f'{name}_weight')}, {name}_bias, {multiplier}, {numbers}}}"


def _linear_constants(writing: Writing, step: op.Linear) -> Iterator[str]:
    layer = yield from _linear_parts(writing, writing.name(step), step.params)
    yield f"const hccs_linear {writing.name(step)} = {layer};\n"


def _linear_call(call: Call) -> str:
    function = "hccs_linear_of_exponents" if call.given().exponents else "hccs_linear"
    if call.step.first_row_outputs:
        others = f"row == 0 ? 0 : {call.step.first_row_outputs}"
        return f"{function}_8_from(&{call.name}, {others}, {call.read()}, rows, {call.out})"
    return f"{function}_{call.bits}(&{call.name}, {call.read()}, rows, {call.out})"


def _patch_constants(writing: Writing, step: op.EmbedPatches) -> Iterator[str]:
    p, name = step.params, writing.name(step)
    yield writing.array(f"{name}_special", p.special)
    yield writing.array(f"{name}_positions", p.positions)
    layer = yield from _linear_parts(writing, name, p.projection)
    parts = [layer, f"{name}_special", f"{name}_positions", len(p.special), p.patch, *p.image]
    yield structure("hccs_patches", name, parts)


def _patch_scratch(step: op.EmbedPatches, rows: int, tile: int) -> Iterable[tuple[str, int, int]]:
    return [("pixels", 8, tile * step.params.projection.weight.shape[1])]


def _norm_constants(writing: Writing, step: op.LayerNorm | op.RmsNorm) -> Iterator[str]:
    p, name = step.params, writing.name(step)
    bias = getattr(p, "bias", None)
    yield writing.array(f"{name}_gain", p.gain)
    if bias is not None:
        yield writing.array(f"{name}_bias", bias)
    wide = [f"UINT64_C({number})" for number in (p.epsilon, root_of(p.channels))]
    numbers = [root_shift(p.channels), p.gain_bits, p.channels]
    biases = "NULL" if bias is None else f"{name}_bias"
    yield structure("hccs_norm", name, [f"{name}_gain", biases, *wide, *numbers])


def _norm_heads_constants(writing: Writing, step: op.NormHeads) -> Iterator[str]:
    name, d = writing.name(step), step.gain.shape[1]
    yield writing.array(f"{name}_gain", step.gain)
    rows = ",\n".join(
        f"    {{{name}_gain + {number * d}, NULL, UINT64_C({head.epsilon}), UINT64_C({root_of(d)}), "
        f"{root_shift(d)}, {head.gain_bits}, {d}}}"
        for number, head in enumerate(step.heads)
    )
    yield f"const hccs_norm {name}[{len(step.gain)}] = {{\n{rows}}};\n"


def _norm_heads_call(call: Call) -> str:
    heads = len(call.step.main.gain)  # type: ignore[attr-defined]
    return f"hccs_norm_heads({call.name}, {heads}, {call.width}, {call.read()}, rows, {call.out})"


def _rotate_constants(writing: Writing, step: op.Rotate) -> Iterator[str]:
    p, name, owner = step.params, writing.name(step), _first_with_tables(writing, step)
    parts = {"cosine": p.cosine, "sine": p.sine}
    if owner is step:
        for part, angles in parts.items():
            yield writing.array(f"{name}_{part}", angles[: writing.program.rows])
    yield writing.array(f"{name}_multiplier", p.multiplier)
    width = writing.program.values[step.output].width // p.all_heads
    numbers = [p.all_heads, p.heads + p.kv_heads, width, p.pairs]
    tables = [f"{writing.name(owner)}_{part}" for part in parts]
    yield structure("hccs_rotation", name, [*tables, f"{name}_multiplier", *numbers])


def _first_with_tables(writing: Writing, step: op.Rotate) -> op.Rotate:
    """The first rotation with the same tables: C has them once."""
    p = step.params
    return next(
        other
        for other in writing.program.operators
        if type(other) is type(step) and other.params.cosine is p.cosine and other.params.sine is p.sine
    )


def _rotate_size(writing: Writing, step: op.Rotate) -> tuple[int, int]:
    p = step.params
    rows = min(writing.program.rows, p.positions) * (_first_with_tables(writing, step) is step)
    return 0, 2 * rows * p.cosine[0].nbytes + p.multiplier.nbytes


def _norm_call(call: Call) -> str:
    return f"hccs_layer_norm_{call.given().bits}(&{call.name}, {call.read()}, rows, {call.out})"


def _attention_constants(writing: Writing, step: op.Attention) -> Iterator[str]:
    name = writing.name(step)
    by_distance = isinstance(step.theta, ScoreTable)
    if by_distance:
        yield writing.array(f"{name}_scores", step.theta.packed)
        six = np.zeros((step.heads, len(NAMES)), np.int32)
    else:
        six = np.stack([getattr(step.theta, part) for part in NAMES], axis=-1)
    factors = np.broadcast_to(step.requant.packed, (step.heads, 5))[:, :4]
    heads = np.concatenate([six, factors], axis=1)
    places = [f"{name}_scores + {DISTANCES * i}" if by_distance else "NULL" for i in range(len(heads))]
    rows = ",\n".join(
        f"    {{{', '.join(map(str, row))}, {place}}}"
        for row, place in zip(heads.tolist(), places, strict=True)
    )
    yield f"static const hccs_attention_head {name}_heads[{len(heads)}] = {{\n{rows}}};\n"
    width = writing.program.values[step.output].width // step.heads
    numbers = [step.heads, step.shared_heads, width, *step.reach]
    yield structure("hccs_attention_heads", name, [f"{name}_heads", *numbers])


def _attention_call(call: Call) -> str:
    rows, out = call.place(call.step.reads[0]), call.place(call.step.main.output)
    if call.writing.generates:
        cache = f"cache->memory + (size_t)cache->capacity * {call.cached}, cache->capacity"
        return f"hccs_attend_cached(&{call.name}, {rows}, rows, position, {cache}, logits, row_scores, {out})"
    room = f"{call.scratch('logits')}, {call.scratch('scores')}"
    queries = "length" if call.step.all_rows else "1"
    return f"hccs_attend(&{call.name}, {rows}, length, {queries}, {room}, {out})"


def _table_constants(writing: Writing, step: op.Table) -> Iterator[str]:
    yield f"const int8_t {writing.name(step)}[256] = {{\n{numbers_of(step.entries)}}};\n"


def _add_call(call: Call) -> str:
    limit = call.step.main.limit  # type: ignore[attr-defined]
    clamped = "" if limit is None else f"{limit}, "
    kind = "long" if call.given().bits == 32 else call.bits
    return f"hccs_add_{kind}({call.read(0)}, {call.read(1)}, {call.count}, {clamped}{call.out})"


def _multiply_call(call: Call) -> str:
    step: Any = call.step.main
    numbers = f"{call.count}, {step.bits}, {step.limit}"
    return f"hccs_multiply_{call.bits}({call.read(0)}, {call.read(1)}, {numbers}, {call.out})"


def _last_call(call: Call) -> str:
    rows, out = call.place(call.step.reads[0]), call.place(call.step.main.output)
    return f"hccs_last_{call.bits}({rows}, length, {call.given().columns}, {out})"


def _narrow_rows_call(call: Call) -> str:
    numbers = f"{call.read()}, {call.width}, rows, {call.out}"
    if call.given().bits == 32:
        return f"hccs_narrow_long_rows({numbers})"
    return f"hccs_narrow_rows(&{call.name}, {numbers})"


def _narrow_rows_constants(writing: Writing, step: op.NarrowRows) -> Iterator[str]:
    name = writing.name(step)
    if step.scale is not None:
        yield writing.array(f"{name}_scale", step.scale)
    yield structure("hccs_scales", name, ["NULL" if step.scale is None else f"{name}_scale"])


def _narrow_call(call: Call) -> str:
    return f"hccs_narrow({call.read()}, {call.count}, {call.step.main.bits}, {call.out})"  # type: ignore[attr-defined]


def _ramp_constants(writing: Writing, step: op.Ramp) -> Iterator[str]:
    p, name = step.params, writing.name(step)
    yield writing.array(f"{name}_knot", p.knot)
    yield writing.array(f"{name}_slope", p.slope)
    yield structure("hccs_ramp_pieces", name, [f"{name}_knot", f"{name}_slope", p.bits])


def _pool_call(call: Call) -> str:
    pooling = f"HCCS_POOL_{call.step.main.pooling.upper()}"  # type: ignore[attr-defined]
    rows, out = call.place(call.step.reads[0]), call.place(call.step.main.output)
    return f"hccs_pool_{call.bits}({pooling}, {rows}, length, {call.width}, {out})"


def _unit_call(call: Call) -> str:
    given = call.given()
    return f"hccs_unit_{given.bits}({call.read()}, {given.width}, {call.width}, rows, {call.out})"


CODE: dict[type[op.Operator], Code] = {
    op.Embed: Code(_embed_call, "hccs_embedding {}", _embed_constants, size=_embed_size),
    op.EmbedPatches: Code(
        lambda c: f"hccs_embed_patches(&{c.name}, image, row, rows, {c.scratch('pixels')}, {c.out})",
        "hccs_patches {}",
        _patch_constants,
        _patch_scratch,
    ),
    op.LayerNorm: Code(_norm_call, "hccs_norm {}", _norm_constants),
    op.Narrow: Code(_narrow_call),
    op.RmsNorm: Code(_norm_call, "hccs_norm {}", _norm_constants),
    op.NarrowRows: Code(_narrow_rows_call, "hccs_scales {}", _narrow_rows_constants),
    op.NormHeads: Code(_norm_heads_call, "hccs_norm {}[]", _norm_heads_constants),
    op.Rotate: Code(
        lambda c: f"hccs_rotate(&{c.name}, {c.read()}, {c.position}, rows, {c.out})",
        "hccs_rotation {}",
        _rotate_constants,
        size=_rotate_size,
    ),
    op.Linear: Code(_linear_call, "hccs_linear {}", _linear_constants),
    op.Attention: Code(
        _attention_call,
        "hccs_attention_heads {}",
        _attention_constants,
        lambda step, rows, tile: [("logits", 8, rows), ("scores", 16, rows)],
        lambda writing, step: (
            0,
            step.heads * HEAD_BYTES + step.theta.packed.nbytes * isinstance(step.theta, ScoreTable),
        ),
    ),
    op.Table: Code(
        lambda c: f"hccs_table({c.name}, {c.read()}, {c.count}, {c.out})", "int8_t {}[256]", _table_constants
    ),
    op.Ramp: Code(
        lambda c: f"hccs_ramp(&{c.name}, {c.read()}, {c.count}, {c.out})",
        "hccs_ramp_pieces {}",
        _ramp_constants,
    ),
    op.Add: Code(_add_call),
    op.Multiply: Code(_multiply_call),
    op.Last: Code(_last_call),
    op.First: Code(lambda c: ""),  # a plan reads first rows where all rows lie
    op.Pool: Code(_pool_call),
    op.Unit: Code(_unit_call),
}

TARGET = Target(
    name="C",
    operators=CODE,
    tile=TILE,
    pools=tuple(POOLS),
    scratch=lambda step, rows, tile: code_of(step).scratch(step, rows, tile),
)


def arena_bytes(plan: ProgramPlan) -> int:
    """The RAM of all values."""
    return sum(bits // 8 * plan.pools[bits] for bits in POOLS)
