"""A program's constants as C: one array a tensor, one structure an operator.

Bytes are written as string literals, a row in each: a compiler reads four million of them in a second, and
needs eleven for as many numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.numbers.heads import NAMES
from hccs.numbers.multipliers import LinearParams
from hccs.program import operators as op
from hccs.program.describe import bytes_of as described_bytes
from hccs.reference.layer_norm import root_of, root_shift

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_STRING = 2048
"""Bytes of a literal; C99 promises 4095 characters."""

_OCTAL = np.array([b"\\%03o" % value for value in range(256)])

HEAD_BYTES = 40
"""Of an `hccs_attention_head`: theta's six, and two multipliers with their shifts."""

STRUCTURES = {
    op.Embed: "hccs_embedding",
    op.EmbedPatches: "hccs_patches",
    op.LayerNorm: "hccs_norm",
    op.Linear: "hccs_linear",
    op.Attention: "hccs_attention_heads",
}
"""What an operator's function is given; the others have plain numbers, and a table its entries."""


def name_of(number: int, step: op.Operator) -> str:
    """The C name of an operator's constants: its number and the value that it writes."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in step.output)
    return f"hccs_{number}_{plain}"


def declarations(program: op.Program) -> str:
    """`hccs_weights.h`: what `hccs_model.c` names."""
    lines = []
    for number, step in enumerate(program.operators):
        if type(step) in STRUCTURES:
            lines.append(f"extern const {STRUCTURES[type(step)]} {name_of(number, step)};")
        elif isinstance(step, op.Table):
            lines.append(f"extern const int8_t {name_of(number, step)}[256];")
    return "\n".join(lines)


def definitions(program: op.Program, longest: int, kept: NDArray[np.int32] | None) -> Iterator[str]:
    """`hccs_weights.c`, operator by operator; `kept` are the words to keep, all of them without."""
    for number, step in enumerate(program.operators):
        name = name_of(number, step)
        match step:
            case op.Embed(params=p):
                words = p.words if kept is None else p.words[kept]
                used = slice(step.first_position, step.first_position + longest)
                yield array(f"{name}_words", words)
                yield array(f"{name}_positions", p.positions[used])
                yield array(f"{name}_types", p.types)
                if kept is not None:
                    yield array(f"{name}_kept", kept)
                parts = [f"{name}_{part}" for part in ("positions", "types")]
                ids = "NULL" if kept is None else f"{name}_kept"
                numbers = [len(words), words.shape[1], p.shift]
                yield structure(step, name, [as_bytes(f"{name}_words"), *parts, ids, *numbers])
            case op.EmbedPatches(params=e):
                yield array(f"{name}_special", e.special)
                yield array(f"{name}_positions", e.positions)
                layer = yield from _linear(name, e.projection)
                parts = [f"{name}_special", f"{name}_positions"]
                yield structure(step, name, [layer, *parts, len(e.special), e.patch, *e.image])
            case op.LayerNorm(params=n):
                yield array(f"{name}_gain", n.gain)
                yield array(f"{name}_bias", n.bias)
                numbers = [n.epsilon, root_of(n.channels), root_shift(n.channels), n.gain_bits, n.channels]
                wide = [f"UINT64_C({number})" for number in numbers[:2]]
                yield structure(step, name, [f"{name}_gain", f"{name}_bias", *wide, *numbers[2:]])
            case op.Linear(params=l):
                layer = yield from _linear(name, l)
                yield f"const hccs_linear {name} = {layer};\n"
            case op.Attention(theta=theta, requant=requant):
                six = np.stack([getattr(theta, part) for part in NAMES], axis=-1)
                heads = np.concatenate([six, requant.packed[:, :4]], axis=1)
                rows = ",\n".join(f"    {{{', '.join(map(str, row))}}}" for row in heads.tolist())
                yield f"static const hccs_attention_head {name}_heads[{len(heads)}] = {{\n{rows}}};\n"
                width = program.values[step.output].width // step.heads
                yield structure(step, name, [f"{name}_heads", step.heads, width, int(step.causal)])
            case op.Table(entries=entries):
                yield f"const int8_t {name}[256] = {{\n{numbers_of(entries)}}};\n"


def structure(step: op.Operator, name: str, parts: list[Any]) -> str:
    """The definition of an operator's structure."""
    return f"const {STRUCTURES[type(step)]} {name} = {{{', '.join(map(str, parts))}}};\n"


def array(name: str, values: NDArray[Any]) -> str:
    """The definition of an array: bytes as rows of string literals, wider integers as numbers."""
    if values.dtype == np.int8:
        width = _row_width(values.shape)
        rows = values.reshape(-1, width)
        return f"static const int8_t {name}[{len(rows)}][{width}] = {{\n{_literals(rows)}}};\n"
    return f"static const {values.dtype.name}_t {name}[{values.size}] = {{\n{numbers_of(values.ravel())}}};\n"


def as_bytes(name: str) -> str:
    """An array of `array` as the address of its first byte."""
    return f"(const int8_t*){name}"


def _linear(name: str, layer: LinearParams) -> Generator[str, None, str]:
    """Arrays of a layer, then its structure as the result."""
    yield array(f"{name}_weight", layer.weight)
    yield array(f"{name}_bias", layer.bias)
    if layer.multiplier is not None:
        yield array(f"{name}_multiplier", layer.multiplier)
    multiplier = "NULL" if layer.multiplier is None else f"{name}_multiplier"
    outputs, inputs = layer.weight.shape
    return f"{{{as_bytes(f'{name}_weight')}, {name}_bias, {multiplier}, {inputs}, {outputs}}}"


def _row_width(shape: tuple[int, ...]) -> int:
    """The largest part of a row that one literal may hold."""
    width = shape[-1]
    return next(part for part in range(min(width, LONGEST_STRING), 0, -1) if width % part == 0)


def _literals(rows: NDArray[np.int8]) -> str:
    escaped = _OCTAL[rows.view(np.uint8)]  # four characters each
    return "".join(f'"{row.tobytes().decode("ascii")}",\n' for row in escaped)


def numbers_of(values: NDArray[Any], per_line: int = 16) -> str:
    """Numbers for an initialiser, some on a line."""
    numbers = [str(value) for value in values.tolist()]
    lines = [", ".join(numbers[i : i + per_line]) for i in range(0, len(numbers), per_line)]
    return ",\n".join(f"    {line}" for line in lines)


def bytes_of(program: op.Program, longest: int, kept: NDArray[np.int32] | None) -> tuple[int, int]:
    """Bytes of the words, and of all other arrays that `definitions` writes."""
    words = others = 0
    for step in program.operators:
        match step:
            case op.Embed(params=p):
                count = len(p.words) if kept is None else len(kept)
                words += count * p.words.shape[1] + (0 if kept is None else kept.nbytes)
                others += min(longest, len(p.positions)) * p.positions[0].nbytes + p.types.nbytes
            case op.Attention():
                others += step.heads * HEAD_BYTES
            case _:
                others += described_bytes(step)
    return words, others
