"""The safetensors reader: what it takes, it takes without a copy; what the package refuses, it refuses."""

from __future__ import annotations

import json
import mmap
import os

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from hccs._files.safetensors import read, write
from hccs.errors import DtypeError, FileError

ARRAYS = {
    "a": np.arange(6, dtype=np.int32).reshape(2, 3),
    "b": np.array([0.5, -2.0]),
    "empty": np.empty((0, 4), np.float32),
    "one": np.array(7, np.uint16),
    "yes": np.array([True, False]),
}


def as_file(path, header, data=b"", length=None):
    """A file with this header, given as a dictionary or as text, whatever the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", ["?", *"bBhHiIqQefd", ">i4", ">f8"])
def test_every_dtype_goes_both_ways_with_the_package(tmp_path, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    write(tmp_path / "ours", {"x": array[:, ::2]}, {"note": "é 😀"})
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "ours")["x"], array[:, ::2])
    native = array.astype(array.dtype.newbyteorder("="))
    safetensors.numpy.save_file({"x": native}, tmp_path / "theirs", metadata={"k": "v"})
    arrays, metadata = read(tmp_path / "theirs")
    assert np.array_equal(arrays["x"], array) and arrays["x"].dtype == native.dtype
    assert metadata == {"k": "v"}


def test_arrays_are_views_of_one_mapping(tmp_path):
    write(tmp_path / "f", ARRAYS, {})
    arrays, _ = read(tmp_path / "f")
    roots = set()
    for name, array in arrays.items():
        assert np.array_equal(array, ARRAYS[name]) and array.shape == ARRAYS[name].shape
        assert not array.flags.owndata and not array.flags.writeable
        while isinstance(array, np.ndarray):
            array = array.base
        roots.add(id(array.obj))
        assert isinstance(array.obj, mmap.mmap)
    assert len(roots) == 1


def test_a_header_of_any_length_gives_aligned_arrays(tmp_path):
    values = np.arange(4.0)
    for padding in range(8):
        text = json.dumps({"x": entry(0, 32, [4], "F64")}).encode() + b" " * padding
        found = read(as_file(tmp_path / "f", text, values.tobytes()))[0]["x"]
        assert found.flags.aligned and np.array_equal(found, values)


def test_a_huge_sparse_file_is_refused_by_its_header(tmp_path):
    zeros, long = tmp_path / "zeros", as_file(tmp_path / "long", {"x": entry(0, 4, [4])}, b"abcd")
    zeros.write_bytes(b"")
    for path in (zeros, long, as_file(tmp_path / "claim", b"{}", length=10**11 - 8)):
        os.truncate(path, 10**11)
        with pytest.raises(FileError, match="damaged one"):
            read(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe"):
        with pytest.raises(FileError, match="a readable file"):
            read(path)


PLAIN = json.dumps({"x": entry(0, 1, [1])}).encode()
DEEP = b'{"__metadata__": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

# name: header, data
DAMAGED = {
    "nothing": (b"", b""),
    "a list": (b"[]", b""),
    "a name twice": (PLAIN[:-1] + b", " + PLAIN[1:], b"a"),
    "metadata twice": (b'{"__metadata__": {}, "__metadata__": {}}', b""),
    "overlap": ({"x": entry(0, 4, [4]), "y": entry(2, 6, [4])}, b"abcdef"),
    "gap": ({"x": entry(0, 2, [2]), "y": entry(3, 4, [1])}, b"abcd"),
    "late begin": ({"x": entry(1, 2, [1])}, b"ab"),
    "trailing bytes": ({"x": entry(0, 2, [2])}, b"abc"),
    "too few bytes": ({"x": entry(0, 2, [2])}, b"a"),
    "end before begin": ({"x": entry(2, 0, [2])}, b"ab"),
    "negative begin": ({"x": entry(-1, 1, [2])}, b"ab"),
    "minus zero": (PLAIN.replace(b"[0,", b"[-0,"), b"a"),
    "size of another shape": ({"x": entry(0, 2, [3])}, b"ab"),
    "negative extents": ({"x": entry(0, 2, [-1, -2])}, b"ab"),
    "fractional extent": ({"x": entry(0, 2, [2.0])}, b"ab"),
    "truth as an extent": ({"x": entry(0, 1, [True])}, b"a"),
    "text as a shape": ({"x": entry(0, 1, "1")}, b"a"),
    "extent beyond int64": ({"x": entry(0, 0, [2**62, 2**62, 0])}, b""),
    "extent of many digits": (PLAIN.replace(b"[1]", b"[1" + b"0" * 9999 + b"]"), b"a"),
    "three offsets": ({"x": {**entry(0, 1, [1]), "data_offsets": [0, 1, 1]}}, b"a"),
    "unknown dtype": ({"x": entry(0, 1, [1], "U7")}, b"a"),
    "no dtype": ({"x": {"shape": [1], "data_offsets": [0, 1]}}, b"a"),
    "not an entry": ({"x": 1}, b""),
    "number as metadata": ({"__metadata__": {"n": 64.9}}, b""),
    "list as metadata": ({"__metadata__": ["n"]}, b""),
    "deep metadata": (DEEP, b""),
    "not a number": (b'{"__metadata__": {"n": NaN}}', b""),
    "half a surrogate": (b'{"__metadata__": {"n": "\\ud800"}}', b""),
    "half a surrogate as a name": (PLAIN.replace(b"x", b"\\udc00"), b"a"),
    "other encoding": (json.dumps({}).encode("utf-16"), b""),
    "no text": (b'{"\xff": 1}', b""),
    "more than an object": (b"{} {}", b""),
}  # fmt: skip
# The package keeps the last of two arrays of one name, where its own documents forbid them.
TAKEN_BY_THE_PACKAGE = {"a name twice"}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused_as_by_the_package(tmp_path, name):
    path = as_file(tmp_path / "f", *DAMAGED[name])
    with pytest.raises(FileError, match=r"complete safetensors file; got a damaged one"):
        read(path)
    if name not in TAKEN_BY_THE_PACKAGE:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(path.read_bytes())


def test_booleans_are_zero_or_one(tmp_path):
    with pytest.raises(FileError, match="booleans other than 0 and 1"):
        read(as_file(tmp_path / "f", {"x": entry(0, 2, [2], "BOOL")}, b"\x01\x02"))


def test_a_dtype_that_numpy_lacks_is_named(tmp_path):
    with pytest.raises(FileError, match="array 'x' of BF16, which NumPy has no type for"):
        read(as_file(tmp_path / "f", {"x": entry(0, 4, [2], "BF16")}, bytes(4)))
    with pytest.raises(DtypeError, match="x of dtype complex128"):
        write(tmp_path / "f", {"x": np.zeros(2, complex)}, {})
