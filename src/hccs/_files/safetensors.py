"""The safetensors file format, as much of it as NumPy arrays need.

The core depends on NumPy alone, so the format (a length, a JSON header, the bytes) is written out here;
the tests hold it against the `safetensors` package in both directions.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import FileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write arrays and text metadata; the file appears whole or not at all."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    blobs, offset = [], 0
    for name, array in arrays.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    replace(path, b"".join([len(text).to_bytes(8, "little"), text, *blobs]))


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` under a temporary name, then rename: an interrupted write leaves the old file."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a safetensors file; anything that is not one is a `FileError`."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"a readable file at {path}", str(error), "Check the path.") from error
    try:
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 + length:
            raise ValueError(f"header of {length} bytes in a file of {len(content)}")
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        arrays = {name: _array(entry, content[8 + length :]) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f"{path} to be a complete safetensors file",
            f"a damaged one ({error})",
            "It may have been cut short while copying: copy it again or save it anew.",
        ) from error
    return arrays, metadata


def _array(entry: dict[str, Any], data: bytes) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError(f"data ends at byte {len(data)}, but an array needs bytes {begin} to {end}")
    array: NDArray[Any] = np.frombuffer(data[begin:end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return array
