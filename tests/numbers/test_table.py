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


@pytest.fixture
def table():
    return hccs.ParamTable(
        B=[[444, 300], [200, 511]],
        S=[[11, 4], [1, 0]],
        D=[[40, 60], [127, 1]],
        scale=[[0.1, 0.05], [1 / 3, 2.0]],
        n=64,
        mode="u8_clb",
        provenance={"model": "tiny", "layers": ["a", "b"]},
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


def test_json_view_has_one_entry_per_head(table):
    view = json.loads(table.to_json())
    assert view["n"] == 64
    assert view["mode"] == "u8_clb"
    assert view["heads"][1] == {"layer": 0, "head": 1, "B": 300, "S": 4, "D": 60, "scale": 0.05}
    assert len(view["heads"]) == 4


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


def test_missing_foreign_and_newer_files_are_refused(table, tmp_path):
    with pytest.raises(errors.FileError, match="readable file"):
        hccs.ParamTable.load(tmp_path / "none")
    foreign = tmp_path / "foreign"
    safetensors.numpy.save_file({"w": np.zeros(3)}, foreign)
    with pytest.raises(errors.FileError, match=r"no format version none with arrays \['w'\]"):
        hccs.ParamTable.load(foreign)
    newer = tmp_path / "newer"
    table.save(newer)
    arrays, metadata = _safetensors.read(newer)
    _safetensors.write(newer, arrays, {**metadata, "version": "2"})
    with pytest.raises(errors.FileError, match=r"version 1; got hccs.ParamTable version 2"):
        hccs.ParamTable.load(newer)


def test_file_outside_the_region_names_head_and_bound(table, tmp_path):
    path = tmp_path / "t"
    table.save(path)
    arrays, metadata = _safetensors.read(path)
    B = arrays["B"].copy()
    B[1, 0] = 512
    _safetensors.write(path, {**arrays, "B": B}, metadata)
    with pytest.raises(errors.FileError, match=r"layer 1 head 0: .*B <= floor\(32767/n\) = 511, but B = 512"):
        hccs.ParamTable.load(path)


def test_metadata_that_lost_n_is_refused(table, tmp_path):
    path = tmp_path / "t"
    table.save(path)
    arrays, metadata = _safetensors.read(path)
    del metadata["n"]
    _safetensors.write(path, arrays, metadata)
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
        ({"scale": [[0.1, np.nan], [1, 1]]}, errors.ParameterError, "scale > 0; got nan"),
        ({"B": [444, 300]}, errors.ShapeError, r"\[layers, heads\]"),
        ({"B": [[444, 300]]}, errors.ShapeError, "one shape"),
        ({"S": [[1.5, 1], [1, 1]]}, errors.DtypeError, "S of dtype int32"),
        ({"n": 0}, errors.ParameterError, "n, the longest row"),
        ({"mode": "u8"}, errors.ModeError, "one of"),
        ({"provenance": {"when": object()}}, errors.DtypeError, "JSON"),
    ],
)
def test_wrong_tables_are_refused(table, change, error, says):
    fields = {name: getattr(table, name) for name in ("B", "S", "D", "scale", "n", "mode", "provenance")}
    with pytest.raises(error, match=says):
        hccs.ParamTable(**{**fields, **change})


def test_operand_scales_travel_with_the_table(table, tmp_path):
    qkv = np.linspace(0.01, 0.5, 12).reshape(2, 2, 3)
    wider = dataclasses.replace(table, qkv_scale=qkv)
    wider.save(tmp_path / "t.safetensors")
    again = hccs.ParamTable.load(tmp_path / "t.safetensors")
    assert again == wider != table
    assert np.array_equal(again.qkv_scale, qkv)
    assert json.loads(wider.to_json())["heads"][1]["qkv_scale"] == qkv[0, 1].tolist()
    with pytest.raises(ValueError, match="read-only"):
        again.qkv_scale[0] = 1


def test_bad_operand_scales_are_refused(table):
    with pytest.raises(errors.ShapeError, match=r"qkv_scale of shape \(2, 2, 3\)"):
        dataclasses.replace(table, qkv_scale=np.ones((2, 2)))
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(errors.ParameterError, match="qkv_scale > 0"):
            dataclasses.replace(table, qkv_scale=np.full((2, 2, 3), bad))
