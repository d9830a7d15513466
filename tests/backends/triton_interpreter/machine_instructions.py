"""The PTX instructions of the row kernels on NumPy words, so that their very text runs without a GPU.

Directed roundings go through long doubles, in which these sums and products are exact. `rcp.approx` may be
off by one unit in the last place, which `off` chooses.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

if np.finfo(np.longdouble).nmant < 63:
    pytest.skip("long doubles are too short here", allow_module_level=True)


def _halves(word):
    return word & 0xFFFF, word >> 16


def _signed(half):
    return ((half + 0x8000) & 0xFFFF) - 0x8000


def _together(low, high):
    return (low & 0xFFFF) | ((high & 0xFFFF) << 16)


def _prmt(a, b, selector):
    both, word, selector = a | (b << 32), 0, int(selector[0])
    for i in range(4):
        nibble = (selector >> (4 * i)) & 15
        byte = (both >> (8 * (nibble & 7))) & 255
        if nibble & 8:
            byte = (byte >> 7) * 255
        word = word | (byte << (8 * i))
    return word


def _as_signed(word):
    return ((word + 2**31) & 0xFFFFFFFF) - 2**31


def _as_float(word):
    return word.astype(np.uint32).view(np.float32).astype(np.longdouble)


def _as_word(value, direction=None):
    near = value.astype(np.float32)
    if direction is not None:
        beyond = near > value if direction < 0 else near < value
        near = np.where(beyond, np.nextafter(near, np.float32(direction * np.inf)), near)
    return near.view(np.uint32).astype(np.int64)


def _shifted(word, by, left):
    by = np.minimum(by, 32)  # as unsigned: a negative one moves everything out
    return word << by if left else word >> by


PLAIN = {
    "prmt.b32": _prmt,
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "add.s32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "shl.b32": lambda a, b: _shifted(a, b, True),
    "shr.u32": lambda a, b: _shifted(a, b, False),
    "shr.s32": lambda a, b: _as_signed(a) >> np.minimum(b, 31),
    "mul.lo.u32": lambda a, b: a * b,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "dp2a.lo.u32.u32": lambda a, b, c: c + (a & 0xFFFF) * (b & 255) + (a >> 16) * ((b >> 8) & 255),
    "dp4a.u32.u32": lambda a, b, c: c + sum(((a >> i) & 255) * ((b >> i) & 255) for i in (0, 8, 16, 24)),
    "add.s16x2": lambda a, b: _together(*map(np.add, _halves(a), _halves(b))),
    "max.u16x2": lambda a, b: _together(*map(np.maximum, _halves(a), _halves(b))),
    "min.u16x2": lambda a, b: _together(*map(np.minimum, _halves(a), _halves(b))),
    "max.s16x2": lambda a, b: _together(*map(np.maximum, *(map(_signed, _halves(v)) for v in (a, b)))),
    "min.relu.s16x2": lambda a, b: _together(
        *(np.maximum(half, 0) for half in map(np.minimum, *(map(_signed, _halves(v)) for v in (a, b))))
    ),
    "add.rn.f32": lambda a, b: _as_word(_as_float(a) + _as_float(b)),
    "add.rp.f32": lambda a, b: _as_word(_as_float(a) + _as_float(b), +1),
    "fma.rm.f32": lambda a, b, c: _as_word(_as_float(a) * _as_float(b) + _as_float(c), -1),
}  # fmt: skip


def run(text: str, *inputs: np.ndarray, off: int = 0) -> np.ndarray:
    """$0 of a piece of assembly of words $1, $2, ..."""
    shape = np.broadcast_shapes(*(np.shape(word) for word in inputs))
    words = [np.broadcast_to(word, shape).reshape(-1).astype(np.int64) & 0xFFFFFFFF for word in inputs]
    registers = {f"${i}": word for i, word in enumerate(words, start=1)}

    def operand(name):
        if name in registers:
            return registers[name]
        value = int(name[2:], 16) if name.startswith("0f") else int(name, 0)
        return np.full(words[0].shape, value & 0xFFFFFFFF, np.int64)

    for statement in text.strip().removeprefix("{").removesuffix("}").split(";"):
        parts = statement.split(None, 1)
        if not parts or parts[0] == ".reg":
            continue
        target, *names = re.split(r",\s*", parts[1].strip())
        values = [operand(name) for name in names]
        if parts[0] == "rcp.approx.ftz.f32":
            result = _as_word(1 / _as_float(values[0])) + off
        else:
            result = PLAIN[parts[0]](*values)
        registers[target] = result & 0xFFFFFFFF
    return registers["$0"].astype(np.uint32).view(np.int32).reshape(shape)


def inline_assembly(handle_of):
    """What stands in for the interpreter's refusal of inline assembly."""

    def create(builder, text, constraints, values, types, is_pure, pack):
        assert constraints == ",".join(["=r"] + ["r"] * len(values))
        assert pack == 1
        result = run(text, *(value.data for value in values))
        return SimpleNamespace(get_result=lambda i: handle_of(result, types[i]))

    return create
