"""Damaged files: every kind of small damage to bytes, and damage to headers that stays well-formed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import numpy as np

from hccs._files.checked import _digest

CODES = {"U8": "u1", "I32": "<i4", "I64": "<i8", "F64": "<f8"}
NUMBERS = (
    "0", "1", "-1", "-0", "2", "3", "7", "64.9", "1e3", "1E400", "255", "65536", "2147483648", "4294967295",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
    "1" + "0" * 400, "true", "null", "NaN", "-Infinity", '"1"', "[]", "[1]", "{}", "", "()", "(1,)",
)  # fmt: skip
DTYPES = ("BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "F32", "F64", "I64", "F8_E4M3", "F4", "X9")
WORDS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"\x00",
    b"\xff",
    b"  ",
    b"'",
    b"(",
    b")",
)


def mutant(content: bytes, chance: random.Random) -> bytes:
    """The content with one to three pieces of damage."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(DAMAGES)(content, chance)
    return content


def forged(content: bytes, chance: random.Random) -> bytes:
    """A file of ours with other numbers or metadata in it, and the checksum that goes with them."""
    header, data = split(content)
    metadata = header.pop("__metadata__")
    del metadata["sha256"]
    for _ in range(chance.choice((1, 1, 2, 4))):
        kind = chance.randrange(4)
        if kind == 0:
            key = chance.choice([name for name in metadata if name not in ("format", "version")])
            metadata[key] = chance.choice(
                (*NUMBERS, "float", "int8", '["a"]', '{"seen": []}', metadata[key] * 2)
            )
        elif kind == 1:
            data = flip_bit(data, chance)
        elif kind == 2:
            data = change_bytes(data, chance)
        else:  # an int64 at the edge of something
            at = 8 * chance.randrange(len(data) // 8)
            number = chance.choice((0, 1, -1, 2**31, 2**40, 2**62, -(2**63), chance.randrange(300)))
            data = data[:at] + number.to_bytes(8, "little", signed=True) + data[at + 8 :]
    arrays = {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], CODES[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
    }
    metadata["sha256"] = _digest(arrays, metadata)
    return joined(json.dumps({"__metadata__": metadata, **header}).encode(), data)


def flip_bit(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content or b"\0")
    damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def change_bytes(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content or b"\0")
    for _ in range(chance.choice((1, 1, 2, 8))):
        damaged[chance.randrange(len(damaged))] = chance.choice(
            (0, 1, 32, 127, 128, 255, chance.randrange(256))
        )
    return bytes(damaged)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def append(content: bytes, chance: random.Random) -> bytes:
    return content + chance.choice((b"\0", b" ", b"\xff")) * chance.choice((1, 2, 8, 100))


def remove(content: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(content) + 1)
    return content[:begin] + content[begin + chance.choice((1, 2, 4, 8, 50)) :]


def repeat(content: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(content) + 1)
    end = begin + chance.choice((1, 2, 8, 50))
    return content[:end] + content[begin:]


def insert_word(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.choice(WORDS) + content[at + chance.randrange(2) :]


def change_number(content: bytes, chance: random.Random) -> bytes:
    """Another number in the place of digits, as headers of every format hold them."""
    found = [match for match in re.finditer(rb"[0-9]+", content)]
    if not found:
        return content
    place = chance.choice(found)
    return content[: place.start()] + chance.choice(NUMBERS).encode() + content[place.end() :]


def change_length(content: bytes, chance: random.Random) -> bytes:
    """Another length of the header of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    other = chance.choice(
        (0, 1, length - 1, length + 1, len(content) - 8, len(content), 10**8, 2**32, 2**63, 2**64 - 1)
    )
    return (other % 2**64).to_bytes(8, "little") + content[8:]


def change_header(content: bytes, chance: random.Random) -> bytes:
    """A safetensors header that is still JSON of its stated length, with other values in it."""
    header, data = split(content)
    if header is None:
        return flip_bit(content, chance)
    place: dict | list = header
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = chance.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.8:
            place = place[key]
            continue
        _change_at(place, key, chance)
        break
    return joined(_text(header, chance), data)


def _change_at(place: dict | list, key: str | int, chance: random.Random) -> None:
    kind = chance.randrange(5)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[chance.choice(("x", "", "__metadata__", "dtype", "n", "sha256"))] = place[key]
    elif kind == 1:
        place.append(place[key])
    elif kind == 2 and isinstance(place[key], int):
        place[key] += chance.choice((-1, 1, 4, 8, -8, 2**40))
    elif kind == 3:
        place[key] = chance.choice(DTYPES)
    else:
        place[key] = chance.choice(
            (0, 1, -1, 2.5, 2**64, True, None, "", "2", [], [0], {}, {"a": "b"}, [[1]], "\ud800")
        )


def _text(header: dict, chance: random.Random) -> bytes:
    text = json.dumps(header)
    if chance.random() < 0.2:  # a name twice
        text = text[:-1] + ", " + text[1:]
    if chance.random() < 0.1:
        text = text.replace("[", "[" * chance.choice((2, 130, 5000)), 1)
    return text.encode()


def split(content: bytes) -> tuple[dict | None, bytes]:
    """Header and data of a safetensors file; no header when it has none that JSON can read."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        return None, content
    return (header if isinstance(header, dict) else None), content[8 + length :]


def joined(text: bytes, data: bytes) -> bytes:
    """A safetensors file of a header's text and the data."""
    return len(text).to_bytes(8, "little") + text + data


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bit, flip_bit, change_bytes, cut, append, remove, repeat, insert_word,
    change_number, change_number, change_length, change_header, change_header,
)  # fmt: skip
