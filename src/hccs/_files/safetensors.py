"""The safetensors file format, as much of it as NumPy arrays need.

The core depends on NumPy alone, so the format (a length, a JSON header, the bytes) is written out here;
the tests hold it against the `safetensors` package in both directions.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hccs._files.atomic import replacing
from hccs.errors import DtypeError, FileError

LARGEST_HEADER = 100_000_000
"""Bytes of JSON that a reader takes; the limit of the `safetensors` package."""

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
_METADATA = "__metadata__"


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write arrays and text metadata; the file appears whole or not at all."""
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    blobs, offset = [], 0
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise DtypeError(
                f"arrays of {', '.join(_DTYPES)}", f"{name} of dtype {dtype}", "Convert it before."
            )
        blobs.append(np.ascontiguousarray(array, dtype))
        end = offset + array.nbytes
        header[name] = {"dtype": _NAMES[dtype], "shape": [*array.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for blob in blobs:
            file.write(blob.data)


def read(
    path: str | os.PathLike[str], *, mapped: bool = True
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a safetensors file; anything that is not one is a `FileError`.

    The arrays are read-only views of the mapped file, or of a copy of it in memory: none is touched before
    the header is known to describe every byte of the file once.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError("not a regular file")
        with open(path, "rb") as file:
            entries, metadata, start = _header(file, os.fstat(file.fileno()).st_size)
            if mapped:
                data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[start:]
            else:
                data = np.frombuffer(file.read(), np.uint8)  # the header is read already
        return {name: entry.view(data) for name, entry in entries.items()}, metadata
    except OSError as error:
        raise FileError(f"a readable file at {path}", str(error), "Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} to be a complete safetensors file",
            f"a damaged one ({error})",
            "It may have been cut short while copying: copy it or save it again.",
        ) from error


class _Entry(NamedTuple):
    """Where the bytes of an array lie, in the order that sorts arrays as they follow each other."""

    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize

    def view(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        raw = data[self.begin : self.end]
        if self.dtype == "BOOL" and (raw > 1).any():
            raise ValueError("booleans other than 0 and 1")
        array: NDArray[Any] = raw.view(_DTYPES[self.dtype]).reshape(self.shape)
        # Headers need not end on a multiple of 8; native code reads aligned numbers.
        return array if array.flags.aligned else array.copy()


def _header(file: BinaryIO, size: int) -> tuple[dict[str, _Entry], dict[str, str], int]:
    """The arrays' entries, the metadata, and where the bytes begin: what does not fit is a ValueError."""
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if length > LARGEST_HEADER or start > size:
        raise ValueError(f"header of {length} bytes in a file of {size}")
    header = json.loads(
        file.read(length).decode(),
        object_pairs_hook=_unique,
        parse_int=_natural,
        parse_float=_natural,
        parse_constant=_natural,
    )
    if not isinstance(header, dict):
        raise ValueError("a header that names no arrays")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that are not text")
    for text in (*header, *metadata, *metadata.values()):
        text.encode()  # half of a surrogate pair is no text
    entries = {name: _entry(name, value) for name, value in header.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]):
        if entry.begin != end or entry.end != end + entry.size:
            raise ValueError(f"array {name!r} in bytes {entry.begin} to {entry.end}, after byte {end}")
        end = entry.end
    if start + end != size:
        raise ValueError(f"{size - start} bytes of arrays where the header describes {end}")
    return entries, metadata, start


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in the header")
    return found


def _natural(digits: str) -> int:
    if not digits.isdecimal() or len(digits) > 18:
        raise ValueError(f"{digits[:20]} where a header has sizes")
    return int(digits)


def _entry(name: str, value: object) -> _Entry:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end], **others}:
            if dtype not in _DTYPES:
                raise ValueError(f"array {name!r} of {dtype}, which NumPy has no type for")
            # An empty array's other dimensions count too: NumPy refuses sizes beyond int64 all the same.
            whole = all(type(number) is int for number in (*shape, begin, end))
            if whole and not others and math.prod(extent or 1 for extent in shape) < 2**59:
                return _Entry(begin, end, dtype, tuple(shape))
    raise ValueError(f"array {name!r} described by {str(value)[:80]}")
