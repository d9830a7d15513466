"""The PTX instructions of our kernels on NumPy words, so that their very text runs without a GPU.

Directed roundings go through long doubles, in which these sums and products are exact. `rcp.approx` may be
off by one unit in the last place, which `off` chooses.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from triton.runtime import interpreter

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


def _as_half(half):
    return half.astype(np.uint16).view(np.float16).astype(np.float64)


def _half_word(value):
    return value.astype(np.float16).view(np.uint16).astype(np.int64)


def _loaded(kind):
    def load(places):
        memory = interpreter._interpreter  # which looks at every address
        mask, other = np.ones(places.shape, bool), np.zeros(places.shape, kind)
        return memory.load(places.astype(np.uint64), mask, other, np.dtype(kind)).astype(np.int64)

    return load


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
    "mad.wide.u32": lambda a, b, c: a * b + c,
    "xor.b32": lambda a, b: a ^ b,
    "sub.rn.f16x2": lambda a, b: _together(
        *(_half_word(_as_half(x) - _as_half(y)) for x, y in zip(_halves(a), _halves(b), strict=True))
    ),
    "ld.global.nc.s8": _loaded(np.int8),
    "ld.global.nc.s16": _loaded(np.int16),
    "ld.global.nc.b32": _loaded(np.int32),
    "ld.global.nc.v2.f32": _loaded(np.int64),
    "mov.b64": lambda pair: pair,
    "min.f32": lambda a, b: _as_word(np.minimum(_as_float(a), _as_float(b))),
    "max.f32": lambda a, b: _as_word(np.maximum(_as_float(a), _as_float(b))),
    "add.rm.f32": lambda a, b: _as_word(_as_float(a) + _as_float(b), -1),
    "fma.rn.f32": lambda a, b, c: _as_word(_as_float(a) * _as_float(b) + _as_float(c)),
    "add.rn.f32": lambda a, b: _as_word(_as_float(a) + _as_float(b)),
    "add.rp.f32": lambda a, b: _as_word(_as_float(a) + _as_float(b), +1),
    "sub.rp.f32": lambda a, b: _as_word(_as_float(a) - _as_float(b), +1),
    "fma.rm.f32": lambda a, b, c: _as_word(_as_float(a) * _as_float(b) + _as_float(c), -1),
}  # fmt: skip


def _pair(names):
    return re.findall(r"[\w$]+", names)


def run(text: str, *inputs: np.ndarray, off: int = 0, outputs: int = 1) -> np.ndarray:
    """The outputs $0, ... of assembly of the words that follow them; $0 itself if there is no other."""
    shape = np.broadcast_shapes(*(np.shape(word) for word in inputs))
    words = [np.broadcast_to(word, shape).reshape(-1) for word in inputs]
    words = [x.view(np.int32) if x.dtype == np.float32 else x for x in words]
    words = [x.astype(np.int64) if x.dtype.itemsize == 8 else x.astype(np.int64) & 0xFFFFFFFF for x in words]
    registers = {f"${i}": word for i, word in enumerate(words, start=outputs)}
    wide = set()

    def operand(name):
        name = name.strip("[]")
        if name in registers:
            return registers[name]
        if name.startswith("{"):
            low, high = (registers[half] for half in _pair(name))
            return low | (high << 32)
        value = int(name[2:], 16) if name.startswith("0f") else int(name, 0)
        return np.full(words[0].shape, value & 0xFFFFFFFF, np.int64)

    for statement in text.strip().removeprefix("{").removesuffix("}").split(";"):
        parts = statement.split(None, 1)
        if parts and parts[0] == ".reg" and parts[1].startswith(".b64"):
            wide.update(re.split(r",\s*", parts[1].removeprefix(".b64").strip()))
        if not parts or parts[0] == ".reg":
            continue
        target, *names = re.findall(r"\{.*?\}|[^,\s]+", parts[1])
        values = [operand(name) for name in names]
        if parts[0] == "rcp.approx.ftz.f32":
            result = _as_word(1 / _as_float(values[0])) + off
        else:
            result = PLAIN[parts[0]](*values)
        if target.startswith("{"):
            for half, shift in zip(_pair(target), (0, 32), strict=True):
                registers[half] = (result >> shift) & 0xFFFFFFFF
        else:
            registers[target] = result if target in wide else result & 0xFFFFFFFF
    found = np.stack([registers[f"${i}"] for i in range(outputs)]).astype(np.uint32).view(np.int32)
    return found[0].reshape(shape) if outputs == 1 else found.reshape(outputs, *shape)


def inline_assembly():
    """What stands in for the interpreter's refusal of inline assembly."""

    def create(builder, text, constraints, values, types, is_pure, pack):
        kinds = constraints.split(",")
        outputs = sum(kind.startswith("=") for kind in kinds)
        assert len(kinds) - outputs == len(values)
        assert set(kinds) <= {"=r", "=f", "r", "f", "l"}
        data = [value.data for value in values]
        if pack == 1:
            assert outputs == 1
            result = run(text, *data).view(np.float32 if kinds[0] == "=f" else np.int32)
        else:  # four bytes in a register give two registers of two halves
            assert (pack, outputs, len(data)) == (4, 2, 1)
            words = np.ascontiguousarray(data[0]).reshape(-1, 4).view(np.uint8).view("<u4")[:, 0]
            halves = run(text, words, outputs=2).T
            result = np.ascontiguousarray(halves).view(np.float16).reshape(data[0].shape)
        return SimpleNamespace(get_result=lambda i: interpreter.TensorHandle(result, types[i].scalar))

    return create
