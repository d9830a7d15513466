"""Parameter tables and the file they travel in."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

import hccs
from hccs import errors
from hccs._files import safetensors as _safetensors
from hccs.numbers.table import FORMAT


@pytest.fixture
def table():
    return hccs.ParamTable(
        B=[[444, 300], [200, 511]],
        S=[[11, 4], [1, 0]],
        D=[[40, 60], [127, 1]],
        scale=[[0.1, 0.05], [1 / 3, 2.0]],
        n=64,
        mode="u8_clb",
        provenance={"model": "tiny"},
        layers=["a", "b"],
    )


def test_read_back_is_equal(table, tmp_path):
    table.save(tmp_path / "t.safetensors")
    again = hccs.ParamTable.load(tmp_path / "t.safetensors")
    assert again == table
    assert again.mode is hccs.Mode.U8_CLB
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_file_is_what_the_safetensors_package_reads_and_writes(table, tmp_path):
    path = tmp_path / "t.safetensors"
    table.save(path)
    arrays = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(arrays["B"], table.B)
    np.testing.assert_array_equal(arrays["scale"], table.scale)
    safetensors.numpy.save_file(arrays, path, metadata=_safetensors.read(path)[1])
    assert hccs.ParamTable.load(path) == table


def test_json_has_one_form_and_a_line_per_layer(table):
    text = table.to_json()
    assert json.loads(text) == table.as_dict()
    assert "\n    [444, 300],\n    [200, 511]\n" in text
    assert hccs.ParamTable.from_dict(json.loads(text)) == table


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"n": 64.9}, errors.ParameterError, "an integer >= 1; got 64.9"),
        ({"n": "64"}, errors.ParameterError, "an integer >= 1"),
        ({"B": [[444, 300], [200]]}, errors.ShapeError, "B as an array"),
        ({"B": "444"}, errors.DtypeError, "B to be an integer"),
        ({"S": [[11, 4], [1, -(2**63)]]}, errors.ParameterError, "S to fit"),
        ({"scale": [["a", "b"], ["c", "d"]]}, errors.DtypeError, "scale to be a number"),
        ({"qkv_scale": "abc"}, errors.DtypeError, "qkv_scale to be a number"),
        ({"provenance": [1]}, errors.DtypeError, "a dictionary"),
        ({"mode": ["u8_div"]}, errors.ModeError, "one of"),
        ({"backend": "float"}, errors.DataError, "a table's values"),
    ],
)
def test_dictionaries_that_hold_no_table_are_refused(table, change, error, says):
    with pytest.raises(error, match=says):
        hccs.ParamTable.from_dict({**table.as_dict(), **change})
    with pytest.raises(errors.DataError, match="without scale"):
        hccs.ParamTable.from_dict({k: v for k, v in table.as_dict().items() if k != "scale"})


def test_layers_and_heads(table):
    assert table.shape == (2, 2)
    assert table.head(0, 1) == hccs.HeadParams(300, 4, 60)
    assert table.layer(1) == hccs.HeadParams([200, 511], [1, 0], [127, 1])


@pytest.mark.parametrize("length", [0, 7, 8, 100, 500])
def test_truncated_file_is_refused(table, tmp_path, length):
    path = tmp_path / "t.safetensors"
    table.save(path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(errors.FileError, match="complete safetensors file; got a damaged one"):
        hccs.ParamTable.load(path)


def test_last_byte_missing_is_refused(table, tmp_path):
    path = tmp_path / "t.safetensors"
    table.save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(errors.FileError, match="damaged"):
        hccs.ParamTable.load(path)


def test_missing_and_foreign_files_and_other_versions_are_refused(table, tmp_path):
    with pytest.raises(errors.FileError, match="readable file"):
        hccs.ParamTable.load(tmp_path / "none")
    foreign = tmp_path / "foreign"
    safetensors.numpy.save_file({"w": np.zeros(3)}, foreign)
    with pytest.raises(errors.FileError, match=r"no format version none with arrays \['w'\]"):
        hccs.ParamTable.load(foreign)
    table.save(tmp_path / "table")
    arrays, metadata = _safetensors.read(tmp_path / "table")
    for version in ("1", "2", "4", "03"):
        _safetensors.write(tmp_path / "other", arrays, {**metadata, "version": version})
        with pytest.raises(errors.FileError, match=f"of version 3; got hccs.ParamTable version {version}"):
            hccs.ParamTable.load(tmp_path / "other")
    _safetensors.write(tmp_path / "other", arrays, {k: v for k, v in metadata.items() if k != "sha256"})
    with pytest.raises(errors.FileError, match="checksum"):
        hccs.ParamTable.load(tmp_path / "other")


def test_every_single_bit_flip_is_refused_or_loads_equal(table, tmp_path):
    path = tmp_path / "t.safetensors"
    table.save(path)
    content, equal = path.read_bytes(), 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert hccs.ParamTable.load(path) == table
            equal += 1
        except errors.FileError:
            pass
    assert equal < 0.01 * 8 * len(content)


def test_file_outside_the_region_names_head_and_bound(table, tmp_path):
    path = tmp_path / "t"
    table.save(path)
    arrays, metadata = FORMAT.load(path)
    B = arrays["B"].copy()
    B[1, 0] = 512
    FORMAT.save(path, {**arrays, "B": B}, metadata)
    with pytest.raises(errors.FileError, match=r"layer 1 head 0: .*B <= floor\(32767/n\) = 511, but B = 512"):
        hccs.ParamTable.load(path)


def test_metadata_that_lost_n_is_refused(table, tmp_path):
    path = tmp_path / "t"
    table.save(path)
    arrays, metadata = FORMAT.load(path)
    del metadata["n"]
    FORMAT.save(path, arrays, metadata)
    with pytest.raises(errors.FileError, match="complete metadata"):
        hccs.ParamTable.load(path)


def test_interrupted_save_leaves_the_old_file(table, tmp_path, monkeypatch):
    path = tmp_path / "t"
    table.save(path)
    monkeypatch.setattr(_safetensors.os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        table.save(path)
    assert hccs.ParamTable.load(path) == table
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"B": [[443, 300], [200, 511]]}, errors.ParameterError, "layer 0 head 0"),
        ({"scale": [[0.1, 0.0], [1, 1]]}, errors.ParameterError, "layer 0 head 1: scale > 0"),
        ({"scale": [[0.1, np.nan], [1, 1]]}, errors.ParameterError, "scale > 0 and finite; got nan"),
        ({"B": [444, 300]}, errors.ShapeError, r"\[layers, heads\]"),
        ({"B": [[444, 300]]}, errors.ShapeError, "one shape"),
        ({"S": [[1.5, 1], [1, 1]]}, errors.DtypeError, "S to be an integer"),
        ({"n": 0}, errors.ParameterError, "n, the longest row"),
        ({"mode": "u8"}, errors.ModeError, "one of"),
        ({"provenance": {"when": object()}}, errors.DtypeError, "JSON"),
        ({"layers": ["a"]}, errors.ShapeError, "2 different names of layers"),
        ({"layers": ["a", "a"]}, errors.ShapeError, "2 different names of layers"),
        ({"layers": ["a", 1]}, errors.DtypeError, "names of layers as text"),
        ({"layers": "ab"}, errors.DtypeError, "a list of names"),
    ],
)
def test_wrong_tables_are_refused(table, change, error, says):
    with pytest.raises(error, match=says):
        dataclasses.replace(table, **change)


def test_operand_scales_travel_with_the_table(table, tmp_path):
    qkv = np.linspace(0.01, 0.5, 12).reshape(2, 2, 3)
    wider = dataclasses.replace(table, qkv_scale=qkv)
    wider.save(tmp_path / "t.safetensors")
    again = hccs.ParamTable.load(tmp_path / "t.safetensors")
    assert again == wider != table
    assert np.array_equal(again.qkv_scale, qkv)
    assert json.loads(wider.to_json())["qkv_scale"] == qkv.tolist()
    with pytest.raises(ValueError, match="read-only"):
        again.qkv_scale[0] = 1


def test_bad_operand_scales_are_refused(table):
    with pytest.raises(errors.ShapeError, match=r"qkv_scale of shape \(2, 2, 3\)"):
        dataclasses.replace(table, qkv_scale=np.ones((2, 2)))
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(errors.ParameterError, match="qkv_scale > 0"):
            dataclasses.replace(table, qkv_scale=np.full((2, 2, 3), bad))


@pytest.fixture
def two_lines():
    return hccs.ParamTable(
        B=[[1023, 900]], S=[[4, 3]], D=[[50, 60]], S2=[[41, 20]], D2=[[20, 30]],
        scale=[[0.1, 0.05]], n=64, mode="u8_div", provenance={"model": "tiny"},
    )  # fmt: skip


def test_two_lines_are_read_back_and_named(two_lines, table, tmp_path):
    assert (two_lines.lines, two_lines.sum_bits, two_lines.f.tolist()) == (2, 24, [[0, 0]])
    assert two_lines.head(0, 1) == hccs.HeadParams(900, 3, 60, 20, 30)
    assert two_lines.layer(0).packed.tolist() == [[1023, 4, 50, 41, 20, 0], [900, 3, 60, 20, 30, 0]]
    two_lines.save(tmp_path / "two")
    again = hccs.ParamTable.load(tmp_path / "two")
    assert again == two_lines and again != table
    assert hccs.ParamTable.from_dict(json.loads(two_lines.to_json())) == two_lines
    assert dataclasses.replace(two_lines, n=32).layer(0) == two_lines.layer(0)


def test_one_line_may_have_wide_sums(table, tmp_path):
    wide = dataclasses.replace(table, sum_bits=24, B=table.B + 600)
    assert wide.lines == 1 and wide.layer(0).wide and not table.layer(0).wide
    wide.save(tmp_path / "wide")
    assert hccs.ParamTable.load(tmp_path / "wide") == wide


def test_tables_of_one_line_hold_no_word_of_a_second(table):
    assert "sum_bits" not in table.as_dict() and "S2" not in table.as_dict()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"S2": None}, "S2 and D2 of the second line; got no S2"),
        ({"D2": [[20, 61]]}, "1 <= D2 <= D = 60, but D2 = 61"),
        ({"S2": [[41, 36]]}, r"B >= S\*D \+ S2\*D2 \+ 1 \* 2\^f = 1261"),
        ({"f": [[0, 1]]}, "B >> f <= 255, but B >> f = 450"),
        ({"sum_bits": 15, "S2": [[30, 20]]}, r"B <= floor\(32767/n\) = 511"),
        ({"sum_bits": 20}, "sum_bits to be 15 or 24"),
        ({"S2": [[1]], "D2": [[1]]}, "all seven values"),
        ({"n": 20000}, r"B <= min\(32767, floor\(16777215/n\)\) = 838"),
    ],
)
def test_inadmissible_second_lines_are_refused(two_lines, changes, says):
    with pytest.raises(errors.HccsError, match=says):
        dataclasses.replace(two_lines, **changes)
