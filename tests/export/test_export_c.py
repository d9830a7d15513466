"""The C export compiles without a warning, passes its own check, and fails it when anything is wrong."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hccs
from hccs import ParamTable
from hccs.errors import FileError, ParameterError
from hccs.export import c, export_c, run_table
from tests.export.compilers import COMPILERS, SANITIZED, in_c, make

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion"]

TABLE = ParamTable(
    B=[[444, 511, 4], [500, 300, 256]],
    S=[[11, 0, 0], [3, 4, 1]],
    D=[[40, 1, 127], [127, 60, 127]],
    scale=[[0.1, 1.0, 1e-7], [1 / 3, 20.0, 0.01]],
    n=64,
    mode="u8_clb",
    layers=["encoder.0", "encoder.1"],
)


def compiled(folder: Path, compiler: str, *flags: str) -> Path:
    program = folder / f"check-{compiler}"
    sources = [folder / "hccs_check.c", folder / "hccs_softmax.c"]
    done = subprocess.run(
        [compiler, *STRICT, *flags, "-o", program, *sources], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return program


def run(program: Path, vectors: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, vectors], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_c(TABLE, tmp_path_factory.mktemp("c") / "project")


@pytest.mark.parametrize("flags", [("-O2",), SANITIZED], ids=["optimised", "sanitized"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiles_without_warnings_and_passes(project: Path, compiler: str, flags: tuple[str, ...]) -> None:
    done = run(compiled(project, compiler, *flags), project / "vectors.txt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"330 rows, 0 outputs differ: PASS\n", done.stdout)


TWO_LINES = ParamTable(
    B=[[1023, 2047, 32767], [255, 300, 1020]],
    S=[[4, 5, 0], [0, 4, 3]],
    D=[[50, 54, 127], [127, 60, 51]],
    S2=[[40, 77, 127], [2, 0, 41]],
    D2=[[20, 22, 127], [100, 1, 20]],
    f=[[2, 0, 0], [0, 0, 2]],
    scale=[[0.1, 1.0, 1e-7], [1 / 3, 20.0, 0.01]],
    n=300,
)


@pytest.mark.parametrize("flags", [("-O2",), SANITIZED], ids=["optimised", "sanitized"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_two_lines_pass_as_well(tmp_path: Path, compiler: str, flags: tuple[str, ...]) -> None:
    folder = export_c(TWO_LINES, tmp_path / "project")
    assert "{1023, 4, 50, 40, 20, 2}" in (folder / "hccs_parameters.h").read_text()
    done = run(compiled(folder, compiler, *flags), folder / "vectors.txt")
    assert re.fullmatch(r"330 rows, 0 outputs differ: PASS\n", done.stdout), done.stdout + done.stderr


@in_c
def test_the_check_notices_a_wrong_output_and_a_wrong_parameter(project: Path, tmp_path: Path) -> None:
    lines = (project / "vectors.txt").read_text().splitlines()
    assert lines[1] == "0 0 i16_div 64 64 0"
    first, rest = lines[3].split(" ", 1)
    lines[3] = f"{int(first) + 1} {rest}"
    (tmp_path / "wrong.txt").write_text("\n".join(lines))
    program = compiled(project, COMPILERS[0])
    done = run(program, tmp_path / "wrong.txt")
    assert (done.returncode, done.stdout) == (1, "330 rows, 1 outputs differ: FAIL\n")
    (tmp_path / "short.txt").write_text("\n".join(lines[:50]))
    done = run(program, tmp_path / "short.txt")
    assert done.returncode == 2 and "damaged at row" in done.stderr

    other = tmp_path / "other"
    shutil.copytree(project, other)
    header = (other / "hccs_parameters.h").read_text()
    (other / "hccs_parameters.h").write_text(header.replace("{444, 11, 40}", "{444, 10, 40}"))
    assert run(compiled(other, COMPILERS[0]), other / "vectors.txt").returncode == 1


@in_c
def test_bad_calls_are_refused_and_leave_the_output_alone(project: Path, tmp_path: Path) -> None:
    source = tmp_path / "refusals.c"
    source.write_text(
        r"""
#include <stdio.h>
#include "hccs_softmax.h"
int main(void) {
    const int8_t x[4] = {1, 2, 3, 4};
    uint8_t p[4] = {9, 9, 9, 9};
    int16_t wide[4] = {9, 9, 9, 9};
    const hccs_head good = {444, 11, 40}, flat = {0, 0, 1}, steep = {400, 11, 40}, tall = {16000, 1, 1};
    const hccs_head deep = {444, 1, 128};
    printf("%d %d %d ", hccs_softmax_row_u8(&flat, HCCS_U8_DIV, x, 4, 4, NULL, p),
           hccs_softmax_row_u8(&steep, HCCS_U8_DIV, x, 4, 4, NULL, p),
           hccs_softmax_row_u8(&deep, HCCS_U8_DIV, x, 4, 4, NULL, p));
    printf("%d %d ", hccs_softmax_row_u8(&good, HCCS_I16_DIV, x, 4, 4, NULL, p),
           hccs_softmax_row_i16(&good, HCCS_U8_CLB, x, 4, 4, NULL, wide));
    printf("%d ", hccs_softmax_row_u8(&good, HCCS_U8_DIV, x, 4, 5, NULL, p));
    printf("%d ", hccs_softmax_row_u8(&tall, HCCS_U8_DIV, x, 4, 4, NULL, p));
    printf("%d %d\n", p[0], wide[3]);
    return 0;
}
"""
    )
    program = tmp_path / "refusals"
    sources = [source, project / "hccs_softmax.c", f"-I{project}"]
    subprocess.run([COMPILERS[0], *STRICT, "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "1 1 1 2 2 3 4 9 9\n"


def test_the_archive_holds_the_rows_of_the_text(project: Path) -> None:
    with np.load(project / "vectors.npz") as file:
        found = {name: file[name] for name in file.files}
    assert len(found["x"]) == 330
    for row in range(0, 330, 5):
        columns = found["columns"][row]
        theta = TABLE.head(int(found["layer"][row]), int(found["head"][row]))
        x, valid = found["x"][row, :columns], found["valid"][row, :columns]
        p = hccs.softmax(x[None], theta, str(found["mode"][row]), valid[None])[0]
        assert np.array_equal(p, found["p"][row, :columns])
    words = (project / "vectors.txt").read_text().split("\n", 3)
    assert list(map(int, words[2].split())) == found["x"][0].tolist()


def test_the_header_names_every_value(project: Path) -> None:
    header = (project / "hccs_parameters.h").read_text()
    for text in ("{444, 11, 40}, {511, 0, 1}", "0.333333343f", "1.0f, 1.00000001e-07f", "HCCS_U8_CLB"):
        assert text in header
    assert " *   1 encoder.1" in header


@in_c
def test_makefile_checks(project: Path) -> None:
    done = make(project)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr


SMALL = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)


def test_a_folder_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object) -> None:
        raise AssertionError("vectors were computed for a folder that cannot be written")

    monkeypatch.setattr("hccs.export.c.vectors", computed)
    (tmp_path / "mine.txt").write_text("precious")
    for out in (tmp_path, tmp_path / "mine.txt", tmp_path / "mine.txt" / "below"):
        with pytest.raises(FileError):
            export_c(SMALL, out)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("notes.txt", "hccs_parameters.h"):
        (mine / name).write_text("precious")
        with pytest.raises(FileError, match="an earlier export"):
            export_c(SMALL, mine)
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        "notes.txt": "precious",
        "hccs_parameters.h": "precious",
    }
    ours = export_c(SMALL, tmp_path / "ours")
    before = (ours / "vectors.txt").read_text()
    export_c(SMALL, ours, seed=1)
    assert (ours / "vectors.txt").read_text() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "ours"]


def test_a_folder_that_was_built_in_is_replaced_and_one_with_notes_is_not(tmp_path: Path) -> None:
    folder = export_c(SMALL, tmp_path / "c")
    (folder / "hccs_check").write_text("built")
    export_c(SMALL, folder, seed=1)
    assert (folder / "hccs_check").exists()
    (folder / "main.c").write_text("precious")
    with pytest.raises(FileError, match=r"no export wrote: main\.c"):
        export_c(SMALL, folder)
    assert (folder / "main.c").read_text() == "precious"


def with_layer_names(names: Any) -> ParamTable:
    theta = {"B": [[444], [300]], "S": [[11], [4]], "D": [[40], [60]]}
    return ParamTable(**theta, scale=[[0.1], [0.1]], n=64, layers=names)


HOSTILE = [
    'x */ __attribute__((constructor)) static void f(void) { fclose(fopen("canary", "w")); } /*',
    'x *\\\n/ __attribute__((constructor)) static void g(void) { fclose(fopen("canary", "w")); } /*',
    'x *??/\n/ __attribute__((constructor)) static void h(void) { fclose(fopen("canary", "w")); } /*',
    "ends in a backslash \\",
    "/* nested",
    "\r\n#error no\v\f\x00\x1b[31m",
    "caf\u00e9 \u2028 \u202e \ud800",
]


@in_c
@pytest.mark.parametrize("name", HOSTILE)
def test_a_layers_name_stays_in_its_comment(name: str, tmp_path: Path) -> None:
    folder = export_c(with_layer_names([name, "encoder.layers[1]:self"]), tmp_path / "c")
    header = (folder / "hccs_parameters.h").read_bytes()
    assert b" *   1 encoder.layers[1]:self\n */\n" in header
    assert all(byte == 10 or 32 <= byte < 127 for byte in header)
    done = make(folder, "CFLAGS=-trigraphs -Werror -include stdio.h")
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
    assert not (folder / "canary").exists()


def test_examples_in_docstrings_run_as_written() -> None:
    failed, attempted = doctest.testmod(c)
    assert (failed, attempted > 0) == (0, True)


@pytest.mark.parametrize("scale", [1e300, 3.5e38, 1e-40, 1e-60])
def test_scales_that_float32_cannot_hold_are_refused(scale: float, tmp_path: Path) -> None:
    table = ParamTable(B=[[444], [300]], S=[[11], [4]], D=[[40], [60]], scale=[[0.1], [scale]], n=64)
    with pytest.raises(ParameterError, match="layer 1 head 0: a scale that float32 holds"):
        export_c(table, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_table_of_a_run(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "model.hccs.safetensors")
    TABLE.save(tmp_path / "table.hccs.safetensors")
    assert run_table(tmp_path) == TABLE
    assert run_table(tmp_path / "table.hccs.safetensors") == TABLE
    (tmp_path / "model.hccs.safetensors").unlink()
    with pytest.raises(FileError, match="Finish the run with hccs convert"):
        run_table(tmp_path)
    for path in ("nowhere", "x" * 300, "table.hccs.safetensors/below"):
        with pytest.raises(FileError, match="to be a finished run or a parameter table"):
            run_table(tmp_path / path)


def test_the_command(tmp_path: Path) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    from hccs.cli.app import app

    TABLE.save(tmp_path / "model.hccs.safetensors")
    result = typer_testing.CliRunner().invoke(app, ["export", "c", str(tmp_path), "-o", str(tmp_path / "c")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "c" / "vectors.npz").exists()


def test_the_command_prints_any_path_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    from hccs.cli.app import app

    monkeypatch.chdir(tmp_path)
    SMALL.save("t.safetensors")
    arguments = ["export", "c", "t.safetensors", "-o", "[/b] c"]
    result = typer_testing.CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.exception
    assert "heads to [/b] c; check them with: make -C '[/b] c'" in result.output
