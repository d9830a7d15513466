"""`project.json`: what an export says about itself, and the files that are refused as one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hccs import ParamTable
from hccs._files.folder import MANIFEST, Manifest
from hccs.errors import FileError
from hccs_aie.export import ProjectFile, Target, export, plan

TABLE = ParamTable(
    B=[[444, 300, 256], [500, 300, 256]],
    S=[[11, 4, 1], [12, 4, 1]],
    D=[[40, 60, 127], [40, 60, 127]],
    scale=np.full((2, 3), 0.1),
    n=64,
    mode="u8_clb",
)


@pytest.mark.parametrize("target", list(Target))
def test_project_json_holds_the_project(target: Target, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    project = plan(TABLE, layer=1, rows=32, tiles=3, mode="i16_div")
    folder = export(project, target, tmp_path / "project")
    assert ProjectFile.load(folder) == ProjectFile(target, project)
    assert json.loads((folder / "project.json").read_text()) == {
        "format": "hccs.aie.project",
        "version": 1,
        "target": target.value,
        "mode": "i16_div",
        "layer": 1,
        "columns": 64,
        "rows": 32,
        "tiles": 3,
        "theta": [[500, 12, 40], [300, 4, 60], [256, 1, 127]],
    }


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = export(plan(TABLE, rows=32), "iron", tmp_path_factory.mktemp("described") / "project")
    found: dict[str, object] = json.loads((folder / "project.json").read_text())
    return found


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "hccs.ParamTable"}, "hccs.ParamTable"),
        ({"version": 2}, "version 2"),
        ({"target": "quartus"}, "quartus"),
        ({"mode": "u8"}, "u8_clb"),
        ({"mode": ["u8_clb"]}, "u8_clb"),
        ({"layer": -1}, "layer"),
        ({"columns": 65}, "multiple of 32"),
        ({"columns": 64.0}, "whole number"),
        ({"rows": True}, "whole number"),
        ({"rows": "32"}, "whole number"),
        ({"tiles": 5}, "These do: 1, 3"),
        ({"theta": []}, "at least one value"),
        ({"theta": [[1, 2]]}, "not a list of B, S, D"),
        ({"theta": "444"}, "not a list of B, S, D"),
        ({"theta": [[444, 11, 40.5]]}, "integer"),
        ({"theta": [[[444], [11], [40]]]}, "theta of one layer"),
        ({"theta": [[600, 11, 40]]}, "columns \\* B"),
    ],
)
def test_a_damaged_project_json_is_refused(
    change: dict[str, object], match: str, described: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "project.json").write_text(json.dumps({**described, **change}))
    with pytest.raises(FileError, match=match):
        ProjectFile.load(tmp_path)


def test_a_project_json_that_is_cut_short_or_missing_is_refused(
    described: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "project.json"
    with pytest.raises(FileError, match="hccs aie export"):
        ProjectFile.load(tmp_path)
    for text in ("", "[]", "null", "{", json.dumps(described)[:-20], "[" * 100_000, "1" * 10_000, "\x00"):
        file.write_text(text)
        with pytest.raises(FileError):
            ProjectFile.load(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError):
        ProjectFile.load(tmp_path)
    for name in described:
        file.write_text(json.dumps({key: value for key, value in described.items() if key != name}))
        with pytest.raises(FileError):
            ProjectFile.load(tmp_path)
    file.write_text(json.dumps(described))
    (tmp_path / MANIFEST).write_text(Manifest(frozenset({"project.json"}), complete=False).text())
    with pytest.raises(FileError, match="stopped"):
        ProjectFile.load(tmp_path)
