"""Exports: complete folders, kernels with the reference's bits on the host, a model that aie4ml lowers."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hccs import FixedPoint, HeadParams, ParamTable, Requant
from hccs._files.folder import MANIFEST
from hccs.errors import DtypeError, FileError, ModeError, ParameterError, ShapeError
from hccs.program import operators as op
from hccs.reference.softmax import softmax as reference_softmax
from hccs_aie.export import AttentionProject, ProjectFile, Target, export, plan
from hccs_aie.export.write import directives, plio_text

TABLE = ParamTable(
    B=[[444, 300, 256], [500, 300, 256]],
    S=[[11, 4, 1], [12, 4, 1]],
    D=[[40, 60, 127], [40, 60, 127]],
    scale=np.full((2, 3), 0.1),
    n=64,
    mode="u8_clb",
)

STAND_INS = Path(__file__).with_name("stand_ins")


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_vitis_folder(tmp_path: Path) -> None:
    folder = export(plan(TABLE, layer=1, rows=32, tiles=3), Target.VITIS, tmp_path / "project")
    expected = {"README.md", "Makefile", "graph.cpp", "hccs_graph.hpp", "compare.py", "host/host_check.cpp"}
    expected |= {
        f"src/{name}" for name in ("hccs_softmax.hpp", "hccs_tile_kernel.cpp", "hccs_parameters.hpp")
    }
    expected |= {f"data/{kind}{tile}.txt" for kind in ("in", "expected") for tile in range(3)}
    assert expected <= names(folder)
    assert not any(re.search(r"@\w+@", path.read_text()) for path in folder.rglob("*.*pp"))
    assert "3 tiles of 32 rows" in (folder / "README.md").read_text()
    # A tile's lines are its rows of the layer: the second head's, all of them.
    logits = np.array((folder / "data/in1.txt").read_text().split(), int).astype(np.int8).reshape(32, 64)
    wanted = np.array((folder / "data/expected1.txt").read_text().split(), int).reshape(32, 64)
    assert np.array_equal(wanted, reference_softmax(logits, HeadParams(300, 4, 60), "u8_clb"))
    assert len((folder / "data/in1.txt").read_text().splitlines()[0].split()) == 8


def test_iron_design_is_python_with_the_right_split(tmp_path: Path) -> None:
    folder = export(plan(TABLE, rows=64, tiles=6), "iron", tmp_path / "project")
    constants = {
        node.targets[0].id: node.value.value
        for node in ast.parse((folder / "design.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    assert constants == {"TILES": 6, "STEP": 32, "IN_SHARE": 2048, "OUT_SHARE": 2048, "TILES_PER_COLUMN": 4}
    assert 'extern "C" void hccs_tile' in (folder / "src/hccs_tile.cc").read_text()


@pytest.mark.parametrize(
    ("target", "mode", "tiles"), [("vitis", "u8_clb", 2), ("iron", "i16_div", 6), ("iron", "u8_div", 1)]
)
def test_the_exported_kernel_passes_its_own_vectors(
    target: str, mode: str, tiles: int, tmp_path: Path
) -> None:
    if shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("needs make and g++")
    project = plan(TABLE, rows=64, tiles=tiles, mode=mode)
    folder = export(project, target, tmp_path / "project")
    done = subprocess.run(["make", "host"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"0 of {3 * 64 * 64} outputs differ" in done.stdout
    # And it can fail: one wrong expectation is seen.
    vectors = folder / "vectors/probabilities.bin"
    content = bytearray(vectors.read_bytes())
    content[5] ^= 1
    vectors.write_bytes(bytes(content))
    assert subprocess.run(["make", "host"], cwd=folder, capture_output=True, check=False).returncode != 0


def attention_step(lines: int, causal: bool) -> op.Attention:
    theta = HeadParams([444, 60], [11, 1], [40, 60])
    if lines == 2:
        theta = HeadParams([1022, 900], [3, 2], [55, 86], [37, 20], [23, 36], 2)
    factors = FixedPoint([16425238, 1 << 22], [33, 31]), FixedPoint([8864707, 9159635], [23, 22])
    return op.Attention(("qkv",), "context", theta, Requant(factors[0], np.ones(2), factors[1]), causal)


@pytest.mark.parametrize(
    ("target", "lines", "causal", "n", "dim"),
    [("vitis", 2, False, 64, 64), ("iron", 2, True, 96, 32), ("iron", 1, True, 64, 64)],
)
def test_exported_attention_passes_its_own_vectors(
    target: str, lines: int, causal: bool, n: int, dim: int, tmp_path: Path
) -> None:
    if shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("needs make and g++")
    project = AttentionProject(attention_step(lines, causal), 0, n, dim)
    folder = export(project, target, tmp_path / "project")
    done = subprocess.run(["make", "host"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"0 of {2 * n * dim} outputs differ" in done.stdout
    vectors = folder / "vectors/outputs.bin"
    content = bytearray(vectors.read_bytes())
    content[5] ^= 1
    vectors.write_bytes(bytes(content))
    assert subprocess.run(["make", "host"], cwd=folder, capture_output=True, check=False).returncode != 0
    assert not any(
        re.search(r"@\w+@", path.read_text()) for path in folder.rglob("*.*") if path.suffix != ".bin"
    )
    assert json.loads((folder / "project.json").read_text())["format"] == "hccs.aie.attention"


def test_attention_that_fits_no_tile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="a tile of at most"):
        AttentionProject(attention_step(2, False), 0, 256, 64)
    with pytest.raises(ParameterError, match="vitis or iron"):
        export(AttentionProject(attention_step(2, False), 0, 64, 64), "aie4ml", tmp_path / "project")


@pytest.mark.parametrize("mode", ["u8_clb", "u8_div", "i16_div", "i16_clb"])
@pytest.mark.parametrize("part", ["xilinx_vek280_base", "vek385_base"])
@pytest.mark.filterwarnings("default")
def test_aie4ml_lowers_the_model(mode: str, part: str, tmp_path: Path) -> None:
    aie4ml = pytest.importorskip("aie4ml")
    folder = export(plan(TABLE, rows=32, mode=mode), Target.AIE4ML, tmp_path / "project")
    assert {"README.md", "hccs_softmax.onnx", "directives.json", "lower.py"} <= names(folder)
    config = json.loads((folder / "directives.json").read_text())
    config["AIEConfig"]["Part"] = part
    model = aie4ml.from_onnx(
        str(folder / "hccs_softmax.onnx"), config, output_dir=tmp_path / "lowered", project_name="hccs"
    )
    model.write()
    header = "".join(path.read_text() for path in (tmp_path / "lowered").rglob("parameters/*.h"))
    header = header or "".join(
        p.read_text() for p in (tmp_path / "lowered").rglob("*.h") if "B[CAS_NUM]" in p.read_text()
    )
    for B in (444, 300, 256):
        assert str(B) in header
    assert f"USE_CLB = {'true' if mode.endswith('clb') else 'false'}" in header


def test_lower_script_runs(tmp_path: Path) -> None:
    pytest.importorskip("aie4ml")
    folder = export(plan(TABLE, rows=32), "aie4ml", tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "lower.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "project").is_dir()


def test_directives_hold_every_head() -> None:
    made = directives(plan(TABLE, layer=1))
    assert made["LayerDirectives"]["softmax_0"]["hccs"] == {"B": 500, "S": 12, "Dmax": 40, "use_clb": True}
    assert len(made["LayerDirectives"]) == 3


def test_the_fewest_tiles_that_fit() -> None:
    long = ParamTable(B=[[63]], S=[[1]], D=[[40]], scale=[[0.1]], n=512, mode="i16_div")
    project = plan(long, rows=64)
    # 16 rows of 512 int8 in and int16 out, twice each, are 49,152 bytes; 32 rows would be 98,304.
    assert (project.tiles, project.rows_per_tile) == (4, 16)
    assert plan(TABLE, rows=64).tiles == 1


def test_replaces_an_export_but_nothing_else(tmp_path: Path) -> None:
    project = plan(TABLE, rows=32)
    folder = export(project, "vitis", tmp_path / "project")
    assert "graph.cpp" not in names(export(project, "iron", folder))
    assert names(folder) == names(export(project, "iron", tmp_path / "other"))
    (folder / "src/notes.txt").write_text("precious")
    with pytest.raises(FileError, match=r"no export wrote: src/notes\.txt"):
        export(project, "vitis", folder)
    other = tmp_path / "mine"
    (other / "vectors").mkdir(parents=True)
    for name in ("vectors/logits.bin", "thesis.tex"):
        (other / name).write_text("precious")
    with pytest.raises(FileError, match="earlier export"):
        export(project, "vitis", other)
    assert names(other) == {"vectors/logits.bin", "thesis.tex"}


@pytest.mark.parametrize("target", list(Target))
def test_files_without_the_list_of_them_are_not_replaced(target: Target, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    folder = export(plan(TABLE, rows=32, tiles=3), target, tmp_path / "project")
    (folder / MANIFEST).unlink()
    with pytest.raises(FileError, match="files that no export wrote"):
        export(plan(TABLE, rows=32, tiles=1), "iron", folder)
    assert ProjectFile.load(folder).target is target


def test_a_project_that_was_built_is_replaced(tmp_path: Path) -> None:
    folder = export(plan(TABLE, rows=32), "vitis", tmp_path / "project")
    (folder / "Work/aie").mkdir(parents=True)
    for product in ("Work/aie/18_0.lst", "libadf.a", "host_check"):
        (folder / product).write_text("built")
    assert (export(plan(TABLE, rows=64), "vitis", folder) / "libadf.a").exists()
    with pytest.raises(FileError, match=r"Work/aie/18_0\.lst, libadf\.a"):
        export(plan(TABLE), "iron", folder)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ParameterError, "0 to 1", {"layer": 2}),
        (ShapeError, "multiples of 32 at 64", {"rows": 48}),
        (ShapeError, "multiple of 32 columns.*calibrate for n = 64", {"columns": 50}),
        (ShapeError, "multiple of 32 columns", {"columns": -32}),
        (ParameterError, "columns \\* B", {"columns": 128}),
        (ParameterError, "These do: 1, 3", {"rows": 32, "tiles": 5}),
        (ParameterError, "These do: 1, 3", {"rows": 32, "tiles": 0}),
        (ParameterError, "at most 304 tiles", {"rows": 32 * 10**12}),
        (DtypeError, "layer to be a whole number", {"layer": 0.5}),
        (DtypeError, "rows to be a whole number", {"rows": 64.0}),
        (DtypeError, "columns to be a whole number", {"columns": "64"}),
        (DtypeError, "tiles to be a whole number", {"tiles": True}),
    ],
)
def test_refusals(error: type[Exception], match: str, arguments: dict[str, int]) -> None:
    with pytest.raises(error, match=match):
        plan(TABLE, **arguments)  # type: ignore[arg-type]


def test_an_unknown_target_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="target to be one of 'vitis', 'iron', 'aie4ml'"):
        export(plan(TABLE), "quartus", tmp_path / "project")


def test_aie4ml_needs_full_sums(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(ModeError, match=">= 256"):
        export(plan(TABLE, columns=32), "aie4ml", tmp_path / "project")


def test_compare_wants_every_output(tmp_path: Path) -> None:
    folder = export(plan(TABLE, rows=32, tiles=3), "vitis", tmp_path / "project")
    out = tmp_path / "out"

    def compare(cwd: Path = folder) -> tuple[int, str]:
        command = [sys.executable, str(folder / "compare.py"), str(out)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert compare() == (1, f"no {out}/out0.txt: the simulator did not write it\n")
    out.mkdir()
    for tile in range(3):
        lines = (folder / f"data/expected{tile}.txt").read_text().splitlines()
        (out / f"out{tile}.txt").write_text("".join(f"T {i} ns\n{line}\n" for i, line in enumerate(lines)))
    assert compare() == (0, "every output equals the reference\n")
    assert compare(tmp_path) == (1, "run this in the project folder: no data/expected*.txt\n")
    (out / "out2.txt").write_text("\n".join(lines[:-1]))
    assert compare() == (1, "8 outputs differ\n")


def test_plio_lines_are_eight_bytes() -> None:
    assert plio_text(np.arange(8, dtype=np.int16)) == "0 1 2 3\n4 5 6 7\n"


def test_the_iron_design_deals_every_row_once(tmp_path: Path) -> None:
    """IRON may not be installed; a stand-in that writes down the calls shows what the design asks for."""
    folder = export(plan(TABLE, rows=64, tiles=6), "iron", tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "design.py", "npu1"],
        cwd=folder,
        env={"PYTHONPATH": str(STAND_INS / "iron")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = ast.literal_eval(done.stdout)
    share = 32 * 64
    workers = [entry for entry in log if entry[0] == "worker"]
    assert [entry[3] for entry in workers] == [0, 32, 64, 96, 128, 160]
    assert workers[4][1:3] == ("in1_0", "out1_0")
    assert ("in0", [0, share, 2 * share, 3 * share]) in log
    assert [entry[3] for entry in log if entry[0] == "fill"] == [(0, 4 * share), (4 * share, 2 * share)]


@pytest.mark.parametrize("kernel", ["u8_div", "i16_clb", "attention"])
def test_the_adf_graph_and_kernel_compile_and_agree(kernel: str, tmp_path: Path) -> None:
    """Against a stand-in adf.h: the class kernel and the graph as written, on the PLIO files as written."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    if kernel == "attention":
        project = AttentionProject(attention_step(2, False), 0, 64, 64)
    else:
        project = plan(TABLE, rows=64, tiles=6, mode=kernel)
    folder = export(project, "vitis", tmp_path / "project")
    sources = [str(STAND_INS / "adf/run_tiles.cpp"), "src/hccs_tile_kernel.cpp"]
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{STAND_INS / 'adf'}"]
    flags += ["-Ihost/include", "-Isrc", "-I.", f"-DPROBABILITY={project.output_type}_t"]
    subprocess.run(["g++", *flags, *sources, "-o", "check"], cwd=folder, check=True)
    done = subprocess.run(["./check"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
